"""Precision in PyTorch: dtypes, autocast, and PyTorch's loss scaling for float16."""

import sys
import warnings

import torch

from common.spec.options import Precision, TrainConfig
from common.spec.state import ScaleState
from common.spec.update_rule import LossScaling

# The dtype of weights, normalised images and losses; and the dtype that layers compute in, where it differs.
DTYPES = {"32": torch.float32, "64": torch.float64, "bf16-mixed": torch.float32, "16-mixed": torch.float32}
AUTOCAST = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


def make_autocast(precision: Precision, device: torch.device) -> torch.autocast:
    """The context in which layers compute in half precision; it does nothing for other precisions."""
    return torch.autocast(device.type, AUTOCAST.get(precision), enabled=precision in AUTOCAST)


class LossScaler(torch.amp.GradScaler):
    """A GradScaler that does nothing if the precision needs no scaling. It counts the skipped steps on the device."""

    def __init__(self, config: TrainConfig, device: torch.device) -> None:
        rule, enabled = LossScaling(), config.precision == "16-mixed"
        # The loss is already multiplied by the number of shards. In float16 it should be as large as with one shard.
        self.num_shards = config.num_shards
        initial = rule.initial / self.num_shards
        super().__init__(device.type, initial, rule.growth, rule.backoff, rule.growth_interval, enabled)
        if enabled:
            # The learning rate depends on the step's number, even if the first step is skipped.
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        self.one, self.skipped = torch.ones((), device=device), torch.zeros((), dtype=torch.int64, device=device)

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        if self.is_enabled():
            # Compared as tensors: get_scale would wait for the device.
            before = self.scale(self.one)
            super().update(new_scale)
            self.skipped += self.scale(self.one) < before

    def get_state(self) -> ScaleState | None:
        """The canonical state, with the scale for one shard."""
        if not self.is_enabled():
            return None
        own = self.state_dict()
        return ScaleState(own["scale"] * self.num_shards, own["_growth_tracker"], int(self.skipped.item()))

    def set_state(self, state: ScaleState) -> None:
        values = {"scale": state.scale / self.num_shards, "_growth_tracker": state.good_steps}
        self.load_state_dict({**self.state_dict(), **values})
        self.skipped.fill_(state.skipped)

    @property
    def skipped_steps(self) -> int | None:
        return int(self.skipped.item()) if self.is_enabled() else None


if __name__ == "__main__":
    # `python -m pt_impl.precision bf16-mixed` exits with 0 if this processor can multiply in half precision. It is a
    # process of its own (common.platform.processor), since an instruction that the processor lacks ends the process.
    # oneDNN multiplies with the instruction sets that it convolves with.
    matrix = torch.ones((64, 64), dtype=AUTOCAST[sys.argv[1]])
    torch.matmul(matrix, matrix)
