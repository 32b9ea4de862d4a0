"""How replicas work together in PyTorch: the strategies that `--strategy` names."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from common.spec.options import TrainConfig
from pt_impl.replicas import sum_over_replicas


def parallelize(network: nn.Module, config: TrainConfig, device: torch.device) -> nn.Module:
    """The module that a training step calls: the wrapped network, or the network itself, which fsdp shards in place.

    Args:
      network: has its weights and is on its device; in a pipeline, this rank's stage, see pt_impl/pipeline.py.
    """
    match config.strategy:
        case "ddp" | "ddp_find_unused_parameters_true":
            unused = config.strategy == "ddp_find_unused_parameters_true"
            device_ids = [device] if device.type == "cuda" else None
            return DistributedDataParallel(network, device_ids=device_ids, find_unused_parameters=unused)
        case "dp":
            return DataParallel(network, list(range(config.num_gpus)))
        case "fsdp":
            shard(network, device)
    return network


def shard(network: nn.Module, device: torch.device) -> None:
    """Leaves each rank only its share of every weight, and so of gradients and optimizer state (FSDP2).

    Each group of weights is gathered when it is needed. The weights of each block of layers are a group, and those of
    all other layers are another one.

    Args:
      device: its type is the one that all replicas have; by default PyTorch would use a GPU if there is one.
    """
    # Imported here, since these imports take half a second.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for child in network.children():
        if any(True for _ in child.children()):
            fully_shard(child, mesh=mesh)
    fully_shard(network, mesh=mesh)


@contextmanager
def without_communication(model: nn.Module, config: TrainConfig) -> Iterator[None]:
    """Backward passes inside the context only add to this replica's gradients. `model`: see `parallelize`."""
    if config.strategy == "fsdp":
        model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)
    elif config.strategy.startswith("ddp"):
        with model.no_sync():
            yield
    else:
        yield


def clip_gradients(model: nn.Module, largest_norm: float, config: TrainConfig) -> None:
    """Scales the gradients down if the norm of all of them together is too large."""
    if config.strategy != "pipeline":
        nn.utils.clip_grad_norm_(model.parameters(), largest_norm)
        return
    # Each rank has only the gradients of its own stage.
    own = nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
    norm = sum_over_replicas(own.square()).sqrt()
    nn.utils.clip_grads_with_norm_(model.parameters(), largest_norm, norm)
