"""Checks of ddp."""

import os
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from exercises.checking import check, expect, expect_new_orders, largest_difference

CPU = torch.device("cpu")


def group() -> tuple[int, int]:
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


def numbered(count: int = 24) -> TensorDataset:
    """Examples that can be recognised: the image of example n is n / count."""
    return TensorDataset(torch.arange(count, dtype=torch.float64)[:, None] / count, torch.arange(count) % 3)


def make_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(1, 3).double()


def flat_weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def global_batches(ranks: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The batches of all ranks (for each rank and step, images and labels), put together step by step."""
    batches = []
    for step in zip(*ranks, strict=True):
        images, labels = (sum(parts, []) for parts in zip(*step, strict=True))
        batches.append((torch.tensor(images, dtype=torch.float64), torch.tensor(labels)))
    return batches


def seen_by(model: nn.Module) -> list[list[float]]:
    """A list to which a new list is added for each epoch, which then gets the images that the model sees."""
    seen: list[list[float]] = []
    model.register_forward_hook(lambda layer, inputs, output: seen[-1].extend(inputs[0].flatten().tolist()))
    return seen


@check("two processes make one group", "which variables does torchrun set?", ranks=2)
def joins(work: ModuleType) -> object:
    rank, world_size, device = work.join()
    everyone = [None] * 2
    if has_group := dist.is_initialized():
        dist.all_gather_object(everyone, rank)
    return rank, world_size, device.type, str(device), has_group, everyone


@joins.judge
def _(*ranks: Any) -> None:
    for number, (rank, world_size, kind, device, has_group, everyone) in enumerate(ranks):
        expect((rank, world_size) == (number, 2), f"join() says rank {rank!r} of {world_size!r}")
        expect(kind == "cpu", f"no GPU can be seen, and the device is {device}")
        expect(has_group is True, "there is no process group")
        expect(sorted(everyone) == [0, 1], "the ranks of the group are not 0 and 1")


@check("without torchrun it is a program with one process", "what stands in the environment then?")
def joins_alone(work: ModuleType) -> object:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        del os.environ[name]
    rank, world_size, _ = work.join()
    return rank, world_size


@joins_alone.judge
def _(alone: Any) -> None:
    rank, world_size = alone
    expect((rank, world_size) == (0, 1), f"join() says rank {rank!r} of {world_size!r}")


@check(
    "each process has a GPU of its own, where there are some", "rank 5 of 8 is on the second node: which GPU is its?"
)
def own_gpu(work: ModuleType) -> object:
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
    device = torch.device(device)
    selected = [one if isinstance(one, int) else torch.device(one).index for one in current]
    backend = None
    if init.call_args:
        backend = init.call_args.args[0] if init.call_args.args else init.call_args.kwargs.get("backend")
    return {
        "group": (rank, world_size),
        "device": (str(device), device.type, device.index),
        "selected": selected,
        "calls": init.call_count,
        "backend": backend,
    }


@own_gpu.judge
def _(seen: Any) -> None:
    rank, world_size = seen["group"]
    expect((rank, world_size) == (5, 8), f"join() says rank {rank!r} of {world_size!r}")
    device, kind, index = seen["device"]
    expect(kind == "cuda", f"there are four GPUs, and the device is {device}")
    chosen = index if index is not None else (seen["selected"] or [0])[-1]
    expect(chosen == 1, f"LOCAL_RANK is 1, and the device is GPU {chosen}")
    expect(seen["calls"] == 1, "there is no process group")
    backend = seen["backend"]
    expect(backend is None or "nccl" in backend, f"GPUs speak over {backend}")


@check("the batch of all processes has the size that was asked for", "whose batch size is BATCH_SIZE?", ranks=2)
def global_batch(work: ModuleType) -> object:
    rank, world_size = group()
    return list(work.make_loader(numbered(21), 8, rank, world_size))


@global_batch.judge
def _(*ranks: Any) -> None:
    batches = global_batches(ranks)
    sizes = [len(labels) for _, labels in batches]
    expect(sizes == [8, 8, 6], f"of 21 examples, 8 to a batch, for 2 processes, came batches of {sizes}")
    examples = {image.item() for images, _ in batches for image in images}
    expect(len(examples) == 21, f"only {len(examples)} of 21 examples were seen in an epoch")


@check(
    "a replica each, and the training of one",
    "what must happen to the gradients between backward() and step()?",
    ranks=2,
)
def same_training(work: ModuleType) -> object:
    rank, world_size = group()
    network = make_model(seed=rank)  # ranks draw different weights
    model = work.wrap(network, world_size)
    loader = work.make_loader(numbered(), 8, rank, world_size)
    work.train_epoch(model, loader, torch.optim.SGD(model.parameters(), lr=0.5), 0, CPU)
    return flat_weights(network), list(loader)


@same_training.judge
def _(*ranks: Any) -> None:
    (weights, _), (others, _) = ranks
    expect(weights == others, "after an epoch the replicas' weights are not the same")
    model = make_model(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for images, labels in global_batches([batches for _, batches in ranks]):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    difference = largest_difference([weights], [flat_weights(model)])
    expect(difference < 1e-12, f"one process with the same batches gets weights that are {difference:.1e} away")


@check("every epoch has another order, the same in all processes", "what does the sampler's order depend on?", ranks=2)
def orders(work: ModuleType) -> object:
    rank, world_size = group()
    loader, model = work.make_loader(numbered(), 8, rank, world_size), nn.Linear(1, 3).double()
    seen = seen_by(model)
    for epoch in range(6):
        seen.append([])
        work.train_epoch(model, loader, torch.optim.SGD(model.parameters(), lr=0.0), epoch, CPU)
    return seen


@orders.judge
def _(*ranks: Any) -> None:
    for epoch, (first, second) in enumerate(zip(*ranks, strict=True)):
        expect(len({*first, *second}) == 24, f"in epoch {epoch} both processes had the same examples")
    for seen in ranks:
        expect_new_orders(seen)


@check("one process alone shuffles, too, and in every epoch anew", "which sampler does it have?")
def orders_alone(work: ModuleType) -> object:
    loader, model = work.make_loader(numbered(), 8, 0, 1), nn.Linear(1, 3).double()
    seen = seen_by(model)
    for epoch in range(6):
        seen.append([])
        work.train_epoch(model, loader, torch.optim.SGD(model.parameters(), lr=0.0), epoch, CPU)
    return seen


@orders_alone.judge
def _(seen: Any) -> None:
    for epoch, images in enumerate(seen):
        expect(len(set(images)) == 24, f"in epoch {epoch} it trained on {len(set(images))} of 24 examples")
        expect(images != sorted(images), f"in epoch {epoch} the examples came in the order of the data set")
    expect_new_orders(seen)


@check("the loss is the mean over the examples of all", "of which examples does this process know the losses?", ranks=2)
def whole_loss(work: ModuleType) -> object:
    rank, world_size = group()
    losses = []
    shares = [TensorDataset(*(tensor[rows] for tensor in numbered().tensors)) for rows in (slice(7), slice(7, 12))]
    unequal = DataLoader(shares[rank], 4, sampler=DistributedSampler(shares[rank], 1, 0))
    for loader in (work.make_loader(numbered(), 8, rank, world_size), unequal):
        model = make_model(seed=0)
        losses.append(work.train_epoch(model, loader, torch.optim.SGD(model.parameters(), lr=0.0), 0, CPU))
    return losses


@whole_loss.judge
def _(*ranks: Any) -> None:
    images, labels = numbered().tensors
    for count, of in ((24, "the mean over all is"), (12, "7 examples here and 5 there: the mean is")):
        wanted = F.cross_entropy(make_model(seed=0)(images[:count]), labels[:count]).item()
        for rank, losses in enumerate(ranks):
            found = losses[count == 12]
            expect(abs(found - wanted) < 1e-9, f"{of} {wanted:.6f}, and rank {rank} was told {found:.6f}")
