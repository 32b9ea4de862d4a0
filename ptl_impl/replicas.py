"""Devices in Lightning: the Trainer starts this program again for every further replica."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import lightning.pytorch as pl
from lightning.pytorch.plugins.environments import (
    ClusterEnvironment,
    LightningEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)

from common.platform.ending import ctrl_c_waits
from common.platform.errors import ReplicaError, UserError, replica_ended_error
from common.platform.launch import Launch
from common.platform.rendezvous import LOOPBACK
from common.spec.options import TrainConfig
from pt_impl.rendezvous import host_store, prepare_rendezvous, tell_rendezvous

NOTICE_SECONDS = 2.0  # after an error, to find the ended process that may have caused it


def make_replica_environment(config: TrainConfig) -> list[ClusterEnvironment]:
    """The Trainer's plugin that starts the replicas, or that uses the replicas of a launcher."""
    launch = Launch.read()
    if launch.world_size is not None:
        prepare_rendezvous(launch)
    match launch.started_by:
        case "torchrun":
            return [TorchElasticEnvironment()]
        case "Slurm":
            return [SLURMEnvironment(auto_requeue=False)]
        case "Open MPI":
            # Used instead of Lightning's MPIEnvironment, which keeps MPI until the end without any need.
            os.environ.update(LOCAL_RANK=str(launch.local_rank), NODE_RANK=str(launch.node))
        case "user":
            if config.devices > 1 and config.num_nodes == 1:
                # By default the replicas would start a store at MASTER_PORT, which anybody could reach.
                tell_rendezvous(LOOPBACK, host_store(LOOPBACK))
    # By default Lightning, within a Slurm job, would wait for Slurm to start the replicas.
    return [LightningEnvironment()]


@contextmanager
def lost_replica_as_replica_error(trainer: pl.Trainer) -> Iterator[None]:
    """Raises ReplicaError if a process started by the Trainer has ended, instead of the error that this causes."""
    starts_others = trainer.num_devices > 1 and Launch.read().started_by == "user"
    try:
        with ctrl_c_waits() if starts_others else nullcontext():
            yield
    except UserError:
        raise
    except Exception as error:
        procs = trainer.strategy.launcher.procs if trainer.strategy.launcher else []
        started = list(procs)
        procs.clear()  # Lightning checks them every five seconds, and kills this process if one has failed
        deadline = time.monotonic() + NOTICE_SECONDS
        while started and time.monotonic() < deadline:
            for rank, process in enumerate(started, 1):
                status = process.poll() or 0
                if status < 0 or status > 128:
                    raise replica_ended_error(rank, status) from None
                if status > 0 and "Connection closed by peer" in str(error):  # it has printed why
                    raise ReplicaError(f"replica {rank} has ended with exit status {status}") from None
            time.sleep(NOTICE_SECONDS / 20)
        raise
