"""How JAX's processes find each other when a launcher has started them."""

import jax

from common.platform.launch import Launch
from common.platform.rendezvous import LOOPBACK, find_rendezvous


def join_processes(launch: Launch, on_gpu: bool) -> None:
    """Makes this process one of the launcher's, with jax.distributed; the first one hosts the coordinator.

    `on_gpu`: each process of a node gets one of its GPUs.
    """
    host, port = find_rendezvous(launch)
    if launch.started_by == "torchrun":
        port += 1  # at MASTER_PORT torchrun's own store listens
    jax.distributed.initialize(
        f"{host}:{port}",
        launch.world_size,
        launch.rank,
        [launch.local_rank] if on_gpu else None,
        coordinator_bind_address=f"{LOOPBACK if launch.num_nodes == 1 else '[::]'}:{port}",
    )
