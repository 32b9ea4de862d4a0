"""Checks of ddp."""

import os
from types import ModuleType
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from exercises.checking import check, expect
from exercises.ranks import gathered

CPU = torch.device("cpu")
Pairs = list[tuple[torch.Tensor, ...]]


def group() -> tuple[int, int]:
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


def numbered(count: int = 24) -> TensorDataset:
    """Examples that can be recognised: the image of example n is n / count."""
    return TensorDataset(torch.arange(count, dtype=torch.float64)[:, None] / count, torch.arange(count) % 3)


def make_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(1, 3).double()


def global_batches(loader: Pairs) -> Pairs:
    """The batches of all ranks, put together step by step."""
    steps = zip(*gathered(list(loader)), strict=True)
    return [tuple(torch.cat(parts) for parts in zip(*step, strict=True)) for step in steps]


@check("two processes make one group", "which variables does torchrun set?", ranks=2)
def joins(work: ModuleType) -> None:
    rank, world_size, device = work.join()
    expect((rank, world_size) == (int(os.environ["RANK"]), 2), f"join() says rank {rank!r} of {world_size!r}")
    expect(device.type == "cpu", f"no GPU can be seen, and the device is {device}")
    expect(dist.is_initialized(), "there is no process group")
    expect(sorted(gathered(rank)) == [0, 1], "the ranks of the group are not 0 and 1")


@check("without torchrun it is a program with one process", "what stands in the environment then?")
def joins_alone(work: ModuleType) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        del os.environ[name]
    rank, world_size, _ = work.join()
    expect((rank, world_size) == (0, 1), f"join() says rank {rank!r} of {world_size!r}")


@check(
    "each process has a GPU of its own, where there are some", "rank 5 of 8 is on the second node: which GPU is its?"
)
def own_gpu(work: ModuleType) -> None:
    os.environ.update(RANK="5", LOCAL_RANK="1", WORLD_SIZE="8", LOCAL_WORLD_SIZE="4")
    current = []  # the GPUs that join() selects, on an imitated machine with four
    with (
        mock.patch.multiple(
            "torch.cuda", is_available=lambda: True, device_count=lambda: 4, set_device=lambda one: current.append(one)
        ),
        mock.patch.multiple(
            "torch.accelerator",
            is_available=lambda: True,
            device_count=lambda: 4,
            current_accelerator=lambda *_: torch.device("cuda"),
            set_device_index=lambda one: current.append(one),
        ),
        mock.patch.multiple("torch.distributed", get_rank=lambda *_: 5, get_world_size=lambda *_: 8),
        mock.patch("torch.distributed.init_process_group") as init,
    ):
        rank, world_size, device = work.join()
    expect((rank, world_size) == (5, 8), f"join() says rank {rank!r} of {world_size!r}")
    device = torch.device(device)
    expect(device.type == "cuda", f"there are four GPUs, and the device is {device}")
    indices = [torch.device("cuda", one).index if isinstance(one, int) else torch.device(one).index for one in current]
    chosen = device.index if device.index is not None else (indices or [0])[-1]
    expect(chosen == 1, f"LOCAL_RANK is 1, and the device is GPU {chosen}")
    expect(init.call_count == 1, "there is no process group")
    backend = init.call_args.args[0] if init.call_args.args else init.call_args.kwargs.get("backend")
    expect(backend is None or "nccl" in backend, f"GPUs speak over {backend}")


@check("the batch of all processes has the size that was asked for", "whose batch size is BATCH_SIZE?", ranks=2)
def global_batch(work: ModuleType) -> None:
    rank, world_size = group()
    batches = global_batches(work.make_loader(numbered(21), 8, rank, world_size))
    sizes = [len(labels) for _, labels in batches]
    expect(sizes == [8, 8, 6], f"of 21 examples, 8 to a batch, for 2 processes, came batches of {sizes}")
    examples = [image.item() for images, _ in batches for image in images]
    expect(len(set(examples)) == 21, f"only {len(set(examples))} of 21 examples were seen in an epoch")


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


@check("one process alone shuffles, too, and in every epoch anew", "which sampler does it have?")
def orders_alone(work: ModuleType) -> None:
    loader, seen = work.make_loader(numbered(), 8, 0, 1), []
    model = nn.Linear(1, 3).double()
    model.register_forward_hook(lambda layer, inputs, output: seen[-1].extend(inputs[0].flatten().tolist()))
    for epoch in range(2):
        seen.append([])
        work.train_epoch(model, loader, torch.optim.SGD(model.parameters(), lr=0.0), epoch, CPU)
        expect(len(set(seen[-1])) == 24, f"in epoch {epoch} it trained on {len(set(seen[-1]))} of 24 examples")
        expect(seen[-1] != sorted(seen[-1]), f"in epoch {epoch} the examples came in the order of the data set")
    expect(seen[0] != seen[1], "two epochs had the examples in the same order")


@check("the loss is the mean over the examples of all", "of which examples does this process know the losses?", ranks=2)
def whole_loss(work: ModuleType) -> None:
    rank, world_size = group()
    loader = work.make_loader(numbered(), 8, rank, world_size)
    model, still = make_model(seed=0), make_model(seed=0)
    found = work.train_epoch(model, loader, torch.optim.SGD(model.parameters(), lr=0.0), 0, CPU)
    images, labels = numbered().tensors
    wanted = F.cross_entropy(still(images), labels).item()
    expect(abs(found - wanted) < 1e-9, f"the mean over all is {wanted:.6f}, and rank {rank} was told {found:.6f}")
    shares = [TensorDataset(*(one[rows] for one in numbered().tensors)) for rows in (slice(7), slice(7, 12))]
    sampler = DistributedSampler(shares[rank], 1, 0)
    loader = DataLoader(shares[rank], 4, sampler=sampler)
    found = work.train_epoch(make_model(seed=0), loader, torch.optim.SGD(model.parameters(), lr=0.0), 0, CPU)
    wanted = F.cross_entropy(still(images[:12]), labels[:12]).item()
    told = f"7 examples here and 5 there: the mean is {wanted:.6f}, and rank {rank} was told {found:.6f}"
    expect(abs(found - wanted) < 1e-9, told)
