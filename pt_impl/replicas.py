"""Devices in PyTorch: one process for each replica, joined in a process group."""

import os
import shlex
import shutil
import sys
import warnings
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from common.experiment import Experiment
from common.platform.errors import UserError
from common.platform.files import Arrays
from common.platform.launch import Launch
from common.platform.machine import cpu_name
from common.platform.rendezvous import check_loopback, find_interface
from common.record.checkpoints import with_checkpoint
from common.resolve import Settings, resolve_devices, resolve_settings
from common.spec.options import Strategy, TrainConfig
from pt_impl.precision import tuned_settings

# For several devices, "auto" means the first of these; see pt_impl/parallel.py.
STRATEGIES: tuple[Strategy, ...] = ("ddp", "ddp_find_unused_parameters_true", "dp", "fsdp", "pipeline")


def resolve(config: TrainConfig, title: str, strategies: tuple[Strategy, ...]) -> TrainConfig:
    """`config` with its devices, threads and settings resolved; `title`: the framework's name in messages.

    Raises:
      UserError: they are not available.
    """
    config = resolve_devices(config, title, torch.cuda.device_count(), Launch.read(), strategies)
    config = resolve_settings(config, tuned_settings(config) if config.mode == "tuned" else Settings())
    check_compiler(config)
    if has_group(config) and Launch.read().world_size is None:
        check_loopback(config.devices)
    if config.strategy == "pipeline" and config.precision == "16-mixed":
        raise UserError("--precision 16-mixed: not with --strategy pipeline, whose stages share no scale of the loss")
    if config.strategy in ("dp", "pipeline") and config.save_first_batch:
        raise UserError(
            f"--save-first-batch true: not with --strategy {config.strategy}, whose processes don't see all layers"
        )
    return config


def check_compiler(config: TrainConfig) -> None:
    """Raises UserError if torch.compile would find no C++ compiler, or if it is combined with --save-first-batch."""
    if not config.compile:
        return
    compiler = shlex.split(os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++"))[0]
    if shutil.which(compiler) is None:
        raise UserError(f"--compile true: PyTorch needs a C++ compiler, and {compiler} is not installed")
    if config.save_first_batch:
        raise UserError("--save-first-batch true: PyTorch's compiled networks don't show their layers; --compile false")


def make_experiment(config: TrainConfig) -> Experiment:
    """The experiment, with its checkpoint. Raises UserError like `Experiment.make`, and if torch.compile would fail.

    torch.compile fails with most networks if a replica has no examples.
    """
    experiment = Experiment.make(config)
    starts, stops, _ = experiment.plan.shards(1, config.num_shards)[-1].T
    if config.compile and config.model not in ("cnn", "lenet") and (starts == stops).any():
        raise UserError(
            f"--compile true: a last batch of {stops[-1] - starts[0]} leaves some of {config.num_shards} replicas"
            f" without examples, for which PyTorch can't compile {config.model}; another --batch-size, or"
            " --compile false"
        )
    return with_checkpoint(experiment)


def setup_process(config: TrainConfig) -> None:
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


def join_group(config: TrainConfig, rank: int, init_method: str, local_rank: int | None = None) -> torch.device:
    """Makes this process the replica `rank`; returns its device. Must run before the first computation.

    Args:
      init_method: where the processes find each other, see torch.distributed.init_process_group.
      local_rank: rank among the processes on this node; None: `rank`, if there is only one node.
    """
    setup_process(config)
    device = find_device(config, rank if local_rank is None else local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if has_group(config):
        only_gpus = config.num_gpus == config.devices
        dist.init_process_group(
            "nccl" if only_gpus else "gloo",
            init_method=init_method,
            rank=rank,
            world_size=config.all_devices,
            device_id=device if only_gpus else None,
        )
    return device


def has_group(config: TrainConfig) -> bool:
    """Whether there is a process for each device; otherwise one process serves all devices."""
    return config.strategy not in ("single_device", "dp")


def find_device(config: TrainConfig, local_rank: int) -> torch.device:
    """The device of a replica, or of a pipeline's stage, on this node."""
    if config.stages_on[local_rank] == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", config.stages_on[:local_rank].count("gpu"))


def wait_for_replicas() -> None:
    """Returns once every replica has called it. Rank 0 calls it last, after it has measured the others' memory."""
    if dist.is_initialized():
        dist.barrier()


def leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def sum_over_replicas(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of every replica's `tensor`, in place."""
    if dist.is_initialized():
        dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
    return tensor


class SumOverReplicas(torch.autograd.Function):
    """The sum of every replica's tensor, as a part of a network. Its gradient is the sum of the replicas' gradients."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor) -> torch.Tensor:
        return sum_over_replicas(tensor.clone())

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return sum_over_replicas(gradient.clone())


def fetch_steps(
    steps: list[tuple[torch.Tensor, torch.Tensor]], votes: list[float]
) -> tuple[list[tuple[float, float]], list[float]]:
    """Global losses and correct answers of several steps, and `votes`, all summed over replicas in one all-reduce."""
    losses, correct = (torch.stack(column).double() for column in zip(*steps, strict=True))
    sums = sum_over_replicas(torch.cat([losses, correct, losses.new_tensor(votes)])).tolist()
    count = len(steps)
    return list(zip(sums[:count], sums[count : 2 * count], strict=True)), sums[2 * count :]


def synchronize() -> None:
    """Waits for this process's device."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def ran_out_of_memory(error: Exception) -> bool:
    """Whether an exception says that a device has no memory left; on the CPU torch has no type for it."""
    if isinstance(error.__cause__, Exception) and ran_out_of_memory(error.__cause__):  # in a pipeline's stage
        return True
    said = str(error)
    on_cpu = isinstance(error, RuntimeError) and (
        "can't allocate memory" in said or "could not create a memory" in said or "std::bad_alloc" in said
    )
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or on_cpu


def lost_another(error: Exception) -> bool:
    """Whether an exception says that another process can't be reached any more; gloo has no type for it."""
    said = str(error)
    by_gloo = isinstance(error, RuntimeError) and ("by peer" in said or "Broken pipe" in said)
    return isinstance(error, dist.DistError) or by_gloo


def share_statistics(network: nn.Module) -> None:
    """Gives every replica the first replica's running statistics of batch normalisation."""
    if dist.is_initialized():
        for buffer in network.buffers():
            dist.broadcast(buffer, 0)


def concatenate_over_replicas(arrays: Arrays) -> Arrays:
    """Every replica's arrays of the same name, concatenated along the first axis; not made for speed."""
    parts = [arrays]
    if dist.is_initialized():
        parts = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(parts, arrays)
    return {name: np.concatenate([part[name] for part in parts]) for name in arrays}


def collect_over_replicas(arrays: Arrays) -> Arrays:
    """The arrays of all replicas, whose names must differ."""
    parts: list[Arrays] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(parts, arrays)
    return {name: array for part in parts for name, array in part.items()}


def device_name(config: TrainConfig) -> str:
    """The processor's or the first GPU's name, or both where a pipeline has both."""
    kinds = dict.fromkeys(config.stages_on)
    return " and ".join(cpu_name() if kind == "cpu" else torch.cuda.get_device_name(0) for kind in kinds)


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
