"""Devices in Lightning: the Trainer starts this program again for every further replica."""

from common.spec.options import TrainConfig
from pt_impl.replicas import device_name as device_name
from pt_impl.replicas import device_peak_memory_bytes as device_peak_memory_bytes
from pt_impl.replicas import fetch_steps as fetch_steps
from pt_impl.replicas import resolve, setup_process
from pt_impl.replicas import synchronize as synchronize
from pt_impl.replicas import wait_for_replicas as wait_for_replicas


def setup_devices(config: TrainConfig) -> TrainConfig:
    """`config` with its devices, threads and settings resolved. Raises UserError where they are not to be had."""
    config = resolve(config, "Lightning")
    setup_process(config)
    return config
