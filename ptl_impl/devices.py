"""Devices in Lightning: the Trainer starts this program again for every further replica."""

from typing import Any

from lightning.pytorch.plugins import MixedPrecision

from common.spec.options import TrainConfig
from pt_impl.devices import resolve, setup_process
from pt_impl.optimizer import LossScaler

PRECISIONS = {"32": "32-true", "64": "64-true", "bf16-mixed": "bf16-mixed"}


def setup_devices(config: TrainConfig) -> TrainConfig:
    """`config` with its devices, threads and settings resolved. Raises UserError where they are not to be had."""
    config = resolve(config, "Lightning")
    setup_process(config)
    return config


def make_plugins(config: TrainConfig, scaler: LossScaler) -> dict[str, Any]:
    """The Trainer's argument for the precision."""
    if config.precision == "16-mixed":
        # Instead of what Lightning takes 16-mixed for on the CPU, which is bf16-mixed.
        return {"plugins": [MixedPrecision("16-mixed", "cuda" if config.accelerator == "gpu" else "cpu", scaler)]}
    return {"precision": PRECISIONS[config.precision]}
