"""Precision in Lightning: the Trainer's arguments for it."""

from lightning.pytorch.plugins import DoublePrecision, MixedPrecision, Precision

from common.spec.options import TrainConfig
from pt_impl.precision import LossScaler

# The Trainer's argument `precision`; None where a plugin is used.
PRECISIONS = {"32": "32-true", "64": None, "bf16-mixed": "bf16-mixed", "16-mixed": None}


def make_precision_plugins(config: TrainConfig, scaler: LossScaler) -> list[Precision]:
    """The Trainer's plugins for the precision."""
    if config.precision == "64":
        # The argument 64-true means the same plugin, but ModelParallelStrategy refuses the argument.
        return [DoublePrecision()]
    if config.precision == "16-mixed":
        # By default Lightning would use bf16-mixed for 16-mixed on the CPU.
        return [MixedPrecision("16-mixed", "cuda" if config.accelerator == "gpu" else "cpu", scaler)]
    return []
