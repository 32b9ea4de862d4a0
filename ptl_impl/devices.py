"""Devices in Lightning: the Trainer starts this program again for every further replica."""

import torch
from lightning.pytorch.strategies import DDPStrategy, Strategy

from common.config import TrainConfig
from common.devices import resolve_devices, resolve_settings
from common.launch import launched_processes
from pt_impl.devices import best_settings, check_compiler, setup_process


def setup_devices(config: TrainConfig) -> TrainConfig:
    """`config` with its devices, threads and settings resolved. Raises UserError where they are not to be had."""
    config = resolve_devices(config, "Lightning", torch.cuda.device_count(), launched_processes())
    config = resolve_settings(config, best_settings(config))
    check_compiler(config)
    setup_process(config)
    return config


def make_strategy(config: TrainConfig) -> Strategy | str:
    """One process for each replica where there are several."""
    if config.devices == 1:
        return "auto"
    return DDPStrategy(process_group_backend="nccl" if config.accelerator == "gpu" else "gloo")
