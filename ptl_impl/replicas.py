"""Devices in Lightning: the Trainer starts this program again for every further replica."""

from lightning.pytorch.plugins.environments import LightningEnvironment

from common.platform.errors import UserError
from common.platform.launch import Launch
from common.spec.options import TrainConfig
from pt_impl.replicas import device_name as device_name
from pt_impl.replicas import device_peak_memory_bytes as device_peak_memory_bytes
from pt_impl.replicas import fetch_steps as fetch_steps
from pt_impl.replicas import find_device as find_device
from pt_impl.replicas import make_experiment as make_experiment
from pt_impl.replicas import ran_out_of_memory as ran_out_of_memory
from pt_impl.replicas import resolve, setup_process
from pt_impl.replicas import synchronize as synchronize
from pt_impl.replicas import wait_for_replicas as wait_for_replicas
from ptl_impl.parallel import STRATEGIES


def setup_devices(config: TrainConfig) -> TrainConfig:
    """`config` with its devices, threads and settings resolved. Raises UserError where they are not to be had."""
    config = resolve(config, "Lightning", STRATEGIES)
    if config.strategy == "fsdp" and config.ema_decay is not None:
        raise UserError(
            f"--ema-decay {config.ema_decay}: not with --strategy fsdp, whose weights Lightning can't average"
        )
    if config.strategy == "fsdp" and config.accumulate_grad_batches > 1 and config.save_first_batch:
        raise UserError("--save-first-batch true: not with --strategy fsdp and --accumulate-grad-batches in Lightning")
    setup_process(config)
    return config


def make_environment() -> list[LightningEnvironment]:
    """The Trainer's plugin that starts the replicas; none where torchrun has started them."""
    # Instead of what Lightning finds by itself: within a Slurm job it would wait for Slurm to start the replicas.
    return [LightningEnvironment()] if Launch.read().world_size is None else []
