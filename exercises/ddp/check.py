"""Checks of ddp."""

import os
from types import ModuleType

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from exercises.checking import check, expect
from exercises.ranks import gathered

CPU = torch.device("cpu")
Pairs = list[tuple[torch.Tensor, ...]]


def group() -> tuple[int, int]:
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


def numbered(count: int = 24) -> TensorDataset:
    """Examples whose image is their number, so that they are known again."""
    return TensorDataset(torch.arange(count, dtype=torch.float64)[:, None] / count, torch.arange(count) % 3)


def make_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(1, 3).double()


def global_batches(loader: Pairs) -> Pairs:
    """The batches of all ranks, put together step by step."""
    steps = zip(*gathered(list(loader)), strict=True)
    return [tuple(torch.cat(parts) for parts in zip(*step, strict=True)) for step in steps]


@check("two processes make one group", "which three variables does torchrun set?", ranks=2)
def joins(work: ModuleType) -> None:
    rank, world_size, device = work.join()
    expect((rank, world_size) == (int(os.environ["RANK"]), 2), f"join() says rank {rank} of {world_size}")
    expect(device.type == "cpu", f"no GPU can be seen, and the device is {device}")
    expect(dist.is_initialized(), "there is no process group")
    expect(sorted(gathered(rank)) == [0, 1], "the ranks of the group are not 0 and 1")


@check("without torchrun it is a program with one process", "what stands in the environment then?")
def joins_alone(work: ModuleType) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        del os.environ[name]
    rank, world_size, _ = work.join()
    expect((rank, world_size) == (0, 1), f"join() says rank {rank} of {world_size}")


@check("the batch of all processes has the size that was asked for", "whose batch size is BATCH_SIZE?", ranks=2)
def global_batch(work: ModuleType) -> None:
    rank, world_size = group()
    batches = global_batches(work.make_loader(numbered(), 8, rank, world_size))
    sizes = [len(labels) for _, labels in batches]
    expect(sizes == [8, 8, 8], f"of 24 examples, 8 to a batch, came batches of {sizes}")
    examples = [image.item() for images, _ in batches for image in images]
    expect(len(set(examples)) == 24, f"only {len(set(examples))} of 24 examples were seen in an epoch")


@check(
    "a replica each, and the training of one",
    "what must happen to the gradients between backward() and step()?",
    ranks=2,
)
def same_training(work: ModuleType) -> None:
    rank, world_size = group()
    network, first = make_model(seed=rank), make_model(seed=0)  # ranks draw different weights
    model = work.wrap(network, world_size)
    loader = work.make_loader(numbered(), 8, rank, world_size)
    work.train_epoch(model, loader, torch.optim.SGD(model.parameters(), lr=0.5), 0, CPU)
    weights = torch.cat([one.detach().flatten() for one in network.parameters()])
    others = gathered(weights)
    expect(bool((others[0] == others[1]).all()), "after an epoch the replicas' weights are not the same")
    optimizer = torch.optim.SGD(first.parameters(), lr=0.5)
    for images, labels in global_batches(loader):
        optimizer.zero_grad()
        F.cross_entropy(first(images), labels).backward()
        optimizer.step()
    wanted = torch.cat([one.detach().flatten() for one in first.parameters()])
    difference = (weights - wanted).abs().max().item()
    expect(difference < 1e-12, f"one process with the same batches gets weights that are {difference:.1e} away")


@check("every epoch has another order, the same in all processes", "what does the sampler's order depend on?", ranks=2)
def orders(work: ModuleType) -> None:
    rank, world_size = group()
    loader, seen = work.make_loader(numbered(), 8, rank, world_size), []
    model = nn.Linear(1, 3).double()
    model.register_forward_hook(lambda layer, inputs, output: seen[-1].extend(inputs[0].flatten().tolist()))
    for epoch in range(3):
        seen.append([])
        work.train_epoch(model, loader, torch.optim.SGD(model.parameters(), lr=0.0), epoch, CPU)
        everyone = gathered(seen[-1])
        expect(len(set(everyone[0] + everyone[1])) == 24, f"in epoch {epoch} both processes had the same examples")
    expect(seen[0] != seen[1] and seen[1] != seen[2], "two epochs had the examples in the same order")


@check("the loss is the mean over the examples of all", "of which examples does this process know the losses?", ranks=2)
def whole_loss(work: ModuleType) -> None:
    rank, world_size = group()
    loader = work.make_loader(numbered(), 8, rank, world_size)
    model, still = make_model(seed=0), make_model(seed=0)
    found = work.train_epoch(model, loader, torch.optim.SGD(model.parameters(), lr=0.0), 0, CPU)
    images, labels = numbered().tensors
    wanted = F.cross_entropy(still(images), labels).item()
    expect(abs(found - wanted) < 1e-9, f"the mean over all is {wanted:.6f}, and rank {rank} was told {found:.6f}")
