"""Devices in Lightning: the Trainer starts this program again for every further replica."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import lightning.pytorch as pl
from lightning.pytorch.plugins.environments import LightningEnvironment
from torch.distributed import TCPStore

from common.platform.errors import ReplicaError, UserError, replica_ended
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


NOTICE_SECONDS = 2.0  # in which the end of a process is seen after what it has caused


def make_environment(config: TrainConfig) -> list[LightningEnvironment]:
    """The Trainer's plugin that starts the replicas; none where torchrun has started them."""
    launch = Launch.read()
    if launch.world_size is not None:
        return []
    if launch.is_first and config.devices > 1:
        host_store()
    # Instead of what Lightning finds by itself: within a Slurm job it would wait for Slurm to start the replicas.
    return [LightningEnvironment()]


hosted: list[TCPStore] = []  # serves until this process ends


def host_store() -> None:
    """Starts what the replicas find each other through; they are told by the environment, as torchrun tells its own.

    Instead of what they would start themselves at MASTER_PORT, which everybody reaches from everywhere.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    descriptor = listener.detach()  # the store's from now on
    hosted.append(TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True")


@contextmanager
def replicas_told(trainer: pl.Trainer) -> Iterator[None]:
    """Raises ReplicaError, instead of what follows from it, where a process that the Trainer has started has ended."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        started = trainer.strategy.launcher.procs if trainer.strategy.launcher else []
        deadline = time.monotonic() + NOTICE_SECONDS
        while started and time.monotonic() < deadline:
            for rank, process in enumerate(started, 1):
                status = process.poll() or 0
                if status < 0 or status > 128:
                    raise replica_ended(rank, status) from None
                if status > 0 and "Connection closed by peer" in str(error):  # it has said why
                    raise ReplicaError(f"replica {rank} has ended with exit status {status}") from None
            time.sleep(NOTICE_SECONDS / 20)
        raise
