"""Devices in PyTorch: one process for each replica, joined in a process group."""

import os
import socket
import warnings

import torch
import torch.distributed as dist
from torch import nn

from common.platform.errors import UserError
from common.platform.files import Arrays
from common.platform.launch import Launch
from common.platform.rendezvous import LOOPBACK, find_interface, find_rendezvous
from common.spec.options import Strategy, TrainConfig

# For several devices, "auto" means the first of these; see pt_impl/parallel.py.
STRATEGIES: tuple[Strategy, ...] = ("ddp", "ddp_find_unused_parameters_true", "dp", "fsdp", "pipeline")


def setup_replica_process(config: TrainConfig) -> None:
    """Sets threads, float formats and network interface of this process. Must run before the first computation."""
    # As in the other implementations, TF32 is not the default: it keeps 10 of the mantissa's 23 bits.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config.tf32
    os.environ["OMP_NUM_THREADS"] = str(config.threads_per_device)  # for processes that this one starts
    torch.set_num_threads(config.threads_per_device)
    # The warning is about kernels with one input channel, whose strides can be written in two ways.
    # DistributedDataParallel copies their gradients, as it does those of other kernels.
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
    # The machine's name may resolve to an address that other machines can't reach, or to no address.
    interface = find_interface(config.nodes)
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


hosted_stores: list[dist.TCPStore] = []  # each serves until this process ends


def prepare_rendezvous(launch: Launch) -> None:
    """Tells this process, and those that it starts, where the replicas find each other: at a store, as with torchrun.

    The first process hosts the store; torch's own one could be reached by anybody.

    Raises:
      UserError: the port is taken.
    """
    if launch.started_by == "torchrun":
        return
    host, port = find_rendezvous(launch) if launch.world_size is not None else (LOOPBACK, 0)  # 0: any free port
    if launch.is_first:
        try:
            listener = socket.create_server((LOOPBACK if host == LOOPBACK else "", port))
        except OSError as error:
            raise UserError(f"MASTER_PORT {port}: {error.strerror}; another one may be free") from None
        port = listener.getsockname()[1]
        descriptor = listener.detach()  # the store owns it from now on
        store = dist.TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor)
        hosted_stores.append(store)
    os.environ.update(MASTER_ADDR=host, MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True")


def join_replica_group(config: TrainConfig, rank: int, local_rank: int = 0) -> torch.device:
    """Makes this process the replica `rank`; returns its device. Must run before the first computation.

    Args:
      local_rank: rank among the processes on this node.
    """
    setup_replica_process(config)
    device = find_replica_device(config, local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if has_group(config):
        only_gpus = config.num_gpus == config.devices
        dist.init_process_group(
            "nccl" if only_gpus else "gloo",
            rank=rank,
            world_size=config.all_devices,
            device_id=device if only_gpus else None,
        )
    return device


def has_group(config: TrainConfig) -> bool:
    """Whether the run has a process for each device; otherwise one process serves all devices."""
    return config.strategy not in ("single_device", "dp") and not config.dry_run


def find_replica_device(config: TrainConfig, local_rank: int) -> torch.device:
    """The device of a replica, or of a pipeline's stage, on this node."""
    if config.stages_on[local_rank] == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", config.stages_on[:local_rank].count("gpu"))


def sum_over_replicas(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of every replica's `tensor`, in place."""
    if dist.is_initialized():
        dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
    return tensor


def share_statistics(network: nn.Module) -> None:
    """Gives every replica the first replica's running statistics of batch normalisation."""
    if dist.is_initialized():
        for buffer in network.buffers():
            dist.broadcast(buffer, 0)


def gather_over_replicas(arrays: Arrays) -> list[Arrays]:
    """The arrays of every replica; not made for speed."""
    parts = [arrays]
    if dist.is_initialized():
        parts = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(parts, arrays)
    return parts


def device_peak_memory_bytes(config: TrainConfig, device: torch.device) -> int | None:
    """Peak memory that PyTorch's allocator gave out on the GPUs, summed over the replicas; None without GPUs.

    `device`: this replica's.
    """
    if not config.num_gpus:
        return None
    on_gpu = device.type == "cuda"  # in a pipeline one stage may be on the CPU
    peak = torch.tensor(torch.cuda.max_memory_allocated(device) if on_gpu else 0, device=device)
    if config.strategy == "dp":  # one process has all GPUs
        peak = torch.tensor(sum(torch.cuda.max_memory_allocated(index) for index in range(config.devices)))
    return int(sum_over_replicas(peak).item())
