"""Precision in Lightning: the Trainer's arguments for it."""

from lightning.pytorch.plugins import MixedPrecision

from common.spec.options import TrainConfig
from pt_impl.precision import LossScaler as LossScaler
from pt_impl.precision import make_autocast as make_autocast

# The Trainer's argument; none in float16, for which there is a plugin.
PRECISIONS = {"32": "32-true", "64": "64-true", "bf16-mixed": "bf16-mixed", "16-mixed": None}


def make_plugins(config: TrainConfig, scaler: LossScaler) -> list[MixedPrecision]:
    """The Trainer's plugins for the precision."""
    if config.precision != "16-mixed":
        return []
    # Instead of what Lightning takes 16-mixed for on the CPU, which is bf16-mixed.
    return [MixedPrecision("16-mixed", "cuda" if config.accelerator == "gpu" else "cpu", scaler)]
