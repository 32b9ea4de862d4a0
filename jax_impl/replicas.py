"""Devices in JAX: a mesh over all devices of the run, which one process has, or several."""

import os
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.extend.backend import clear_backends
from numpy.typing import NDArray

from common.platform.launch import Launch
from common.platform.machine import has_gpu
from common.platform.rendezvous import LOOPBACK, find_rendezvous
from common.spec.options import TrainConfig

AXIS = "replicas"  # the only axis of the mesh


def count_gpus() -> int:
    """Number of GPUs that JAX can use on this node.

    JAX is asked only where nvidia-smi lists a GPU: without a driver, the CUDA 13 plugin of JAX 0.10.2 crashes.
    """
    if not has_gpu():
        return 0
    with suppress(RuntimeError):  # the plugin is missing
        return len(jax.local_devices(backend="gpu"))
    return 0


def own_devices(config: TrainConfig) -> int:
    """Number of this process's devices. Each process on a node has an equal share of the node's devices."""
    return config.devices // (Launch.read().local_world_size or 1)


def setup_process(config: TrainConfig) -> None:
    """Sets devices, threads and float formats of this process. Must run before the first computation.

    Args:
      config: its device options are resolved.
    """
    clear_backends()  # they exist if GPUs have been counted; the number of devices and threads can't change otherwise
    own = own_devices(config)
    # The visits of examples are 64-bit integers, and so are the losses' sums. Arrays of 32 bits stay so.
    jax.config.update("jax_enable_x64", True)
    if config.accelerator == "cpu":
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", own)
        # All devices of a process share XLA's threads, whose number has no option, but this variable.
        os.environ["NPROC"] = str(config.threads_per_device * own)
    # As in the other implementations, TF32 is not the default: it keeps 10 of the mantissa's 23 bits.
    jax.config.update("jax_default_matmul_precision", "tensorfloat32" if config.tf32 else "highest")


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


def make_mesh(config: TrainConfig, launch: Launch) -> jax.sharding.Mesh:
    """Joins the processes of the run, if there are several; the mesh has the devices of all of them."""
    setup_process(config)
    if launch.world_size is not None and launch.world_size > 1:
        join_processes(launch, on_gpu=config.accelerator == "gpu")
    own = own_devices(config)
    devices = [device for process in range(jax.process_count()) for device in jax.local_devices(process)[:own]]
    return jax.sharding.Mesh(np.array(devices), (AXIS,), axis_types=(jax.sharding.AxisType.Auto,))


def sum_over_processes(array: NDArray[Any]) -> NDArray[Any]:
    """The sum of every process's array. All processes must call it."""
    if jax.process_count() == 1:
        return array
    return np.asarray(multihost_utils.process_allgather(array)).sum(0)


def replicas_differ(array: jax.Array) -> bool:
    """Whether this process's devices have different values of an array of which each has a copy."""
    if not array.is_fully_replicated:
        return False
    first, *others = (np.asarray(shard.data) for shard in array.addressable_shards)
    return any((first != other).any() for other in others)


def device_peak_memory_bytes(config: TrainConfig, mesh: jax.sharding.Mesh) -> int | None:
    """Peak memory that JAX's allocator gave out on the GPUs, summed; None on the CPU."""
    if config.accelerator == "cpu":
        return None
    own = sum(device.memory_stats()["peak_bytes_in_use"] for device in mesh.local_devices)
    return int(sum_over_processes(np.array(own)))


def cuda_version() -> str | None:
    """The version of CUDA that the installed plugin is built for; None if there is none."""
    return next((version for version in ("13", "12") if find_spec(f"jax_cuda{version}_plugin")), None)
