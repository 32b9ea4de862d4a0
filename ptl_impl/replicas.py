"""Devices in Lightning: the Trainer starts this program again for every further replica."""

import os
from contextlib import AbstractContextManager, nullcontext

from lightning.pytorch.plugins.environments import (
    ClusterEnvironment,
    LightningEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)

from common.platform.ending import ctrl_c_waits
from common.platform.launch import Launch
from common.spec.options import TrainConfig
from pt_impl.replicas import prepare_rendezvous


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
                prepare_rendezvous(launch)
    # By default Lightning, within a Slurm job, would wait for Slurm to start the replicas.
    return [LightningEnvironment()]


def ranks_start() -> AbstractContextManager[None]:
    """If the Trainer starts ranks inside, Ctrl-C waits until they are in `main`."""
    return ctrl_c_waits() if Launch.read().started_by == "user" else nullcontext()
