"""torch.optim.SGD, whose rule is the shared one (common/spec/update_rule.py); torch's loss scaling, for float16."""

import warnings

import torch
from torch import nn

from common.spec.options import TrainConfig
from common.spec.update_rule import LossScaling, UpdateRule


def make_optimizer(
    model: nn.Module, rule: UpdateRule, **options: bool
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """The optimizer, and the scheduler to be stepped after every step. `options`: torch.optim.SGD's, as `fused`."""
    # A rate of 1 here, times the shared table's rate of each step.
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=1.0,
        momentum=rule.momentum,
        dampening=0,
        weight_decay=rule.weight_decay,
        nesterov=rule.nesterov,
        **options,
    )
    if options.get("fused") and rule.momentum:
        # Fused, a first step that is skipped would leave its velocity unset. From zero the rule is the same.
        for parameter in model.parameters():
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    rates = [*rule.learning_rates.tolist(), 0.0]  # the scheduler looks one step past the last
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rates[step])


class LossScaler(torch.amp.GradScaler):
    """Does nothing where the precision needs no scaling; counts the steps that are skipped, on the device."""

    def __init__(self, config: TrainConfig, device: torch.device) -> None:
        rule, enabled = LossScaling(), config.precision == "16-mixed"
        # The loss comes here times the number of replicas; in float16 it shall be as large as with one of them.
        initial = rule.initial / config.devices
        super().__init__(device.type, initial, rule.growth, rule.backoff, rule.growth_interval, enabled)
        if enabled:
            # The rate goes by the step's number, also where the first step is skipped.
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        self.one, self.skipped = torch.ones((), device=device), torch.zeros((), dtype=torch.int64, device=device)

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        if self.is_enabled():
            # Compared as tensors: get_scale would wait for the device.
            before = self.scale(self.one)
            super().update(new_scale)
            self.skipped += self.scale(self.one) < before

    @property
    def skipped_steps(self) -> int | None:
        return int(self.skipped.item()) if self.is_enabled() else None
