"""Devices in Lightning: the Trainer starts this program again for every further replica."""

import os

import torch
from lightning.pytorch.strategies import DDPStrategy, Strategy

from common.config import TrainConfig
from common.devices import resolve_devices
from pt_impl.devices import setup_process


def setup_devices(config: TrainConfig) -> TrainConfig:
    """`config` with its devices and threads resolved. Raises UserError where they are not to be had."""
    # Lightning sets WORLD_SIZE too, in the processes that it starts itself; those take --devices as given.
    launched = int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else None
    config = resolve_devices(config, "Lightning", torch.cuda.device_count(), launched)
    setup_process(config)
    return config


def make_strategy(config: TrainConfig) -> Strategy | str:
    """One process for each replica where there are several."""
    if config.devices == 1:
        return "auto"
    return DDPStrategy(process_group_backend="nccl" if config.accelerator == "gpu" else "gloo")
