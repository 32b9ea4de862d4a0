"""Precision in Lightning: the Trainer's arguments."""

from typing import Any

from lightning.pytorch.plugins import MixedPrecision

from common.spec.options import TrainConfig
from pt_impl.precision import LossScaler as LossScaler
from pt_impl.precision import make_autocast as make_autocast

PRECISIONS = {"32": "32-true", "64": "64-true", "bf16-mixed": "bf16-mixed"}


def make_plugins(config: TrainConfig, scaler: LossScaler) -> dict[str, Any]:
    """The Trainer's argument for the precision."""
    if config.precision == "16-mixed":
        # Instead of what Lightning takes 16-mixed for on the CPU, which is bf16-mixed.
        return {"plugins": [MixedPrecision("16-mixed", "cuda" if config.accelerator == "gpu" else "cpu", scaler)]}
    return {"precision": PRECISIONS[config.precision]}
