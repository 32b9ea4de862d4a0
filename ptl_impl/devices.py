"""Devices in Lightning: the Trainer starts this program again for every further replica."""

from lightning.pytorch.strategies import DDPStrategy, Strategy

from common.config import TrainConfig
from pt_impl.devices import resolve, setup_process


def setup_devices(config: TrainConfig) -> TrainConfig:
    """`config` with its devices, threads and settings resolved. Raises UserError where they are not to be had."""
    config = resolve(config, "Lightning")
    setup_process(config)
    return config


def make_strategy(config: TrainConfig) -> Strategy | str:
    """One process for each replica where there are several."""
    if config.devices == 1:
        return "auto"
    return DDPStrategy(process_group_backend="nccl" if config.accelerator == "gpu" else "gloo")
