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
    """This process's rank, and how many there are; as on two nodes, where each process is the first one of its node."""
    dist.init_process_group("gloo")
    os.environ["LOCAL_RANK"] = "0"
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


def images_seen(work: ModuleType, rank: int, world_size: int) -> list[list[float]]:
    """For each of six epochs the images that the model sees."""
    loader, model = work.make_loader(numbered(), 8, rank, world_size), nn.Linear(1, 3).double()
    seen: list[list[float]] = []
    model.register_forward_hook(lambda layer, inputs, output: seen[-1].extend(inputs[0].flatten().tolist()))
    for epoch in range(6):
        seen.append([])
        work.train_epoch(model, loader, torch.optim.SGD(model.parameters(), lr=0.0), epoch, CPU)
    return seen


def expect_shuffled(seen: list[list[float]]) -> None:
    for epoch, images in enumerate(seen):
        told = f"in epoch {epoch} the examples came in the order of the data set"
        expect(images != sorted(images), told, "who shuffles them?")
    expect_new_orders(seen)


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
        told = f"join(): yours rank {rank!r} of {world_size!r}, wanted {number} of 2"
        expect((rank, world_size) == (number, 2), told)
        expect(kind == "cpu", f"no GPU can be seen, and the device is {device}")
        expect(has_group is True, "there is no process group")
        expect(sorted(everyone) == [0, 1], "the ranks of the group are not 0 and 1")


@check("without torchrun it is a program with one process", "what stands in the environment then?")
def joins_alone(work: ModuleType) -> object:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        del os.environ[name]
    del os.environ["TORCHELASTIC_RUN_ID"]
    rank, world_size, _ = work.join()
    return rank, world_size


@joins_alone.judge
def _(alone: Any) -> None:
    rank, world_size = alone
    expect((rank, world_size) == (0, 1), f"join(): yours rank {rank!r} of {world_size!r}, wanted 0 of 1")


@check(
    "each process has a GPU of its own, where there are some", "rank 5 of 8 is on a node of several: which GPU is its?"
)
def own_gpu(work: ModuleType) -> object:
    return [joined_on_node(work, gpus) for gpus in (4, 1)]


def joined_on_node(work: ModuleType, gpus: int) -> object:
    """What join() does as rank 5 of 8, on an imitated node with `gpus` GPUs and as many processes."""
    os.environ.update(RANK="5", LOCAL_RANK=str(5 % gpus), WORLD_SIZE="8", LOCAL_WORLD_SIZE=str(gpus))
    selected: list[Any] = []
    both = {"is_available": lambda: True, "device_count": lambda: gpus}
    current = {"current_accelerator": lambda *_: torch.device("cuda"), "set_device_index": selected.append}

    def selected_gpu() -> int:
        numbers = [one if isinstance(one, int) else torch.device(one).index for one in (0, *selected)]
        return [number for number in numbers if number is not None][-1]

    with (
        mock.patch.multiple("torch.cuda", **both, set_device=selected.append, current_device=selected_gpu),
        mock.patch.multiple("torch.accelerator", **both, **current, current_device_index=selected_gpu),
        mock.patch.multiple("torch.distributed", get_rank=lambda *_: 5, get_world_size=lambda *_: 8),
        mock.patch("torch.distributed.init_process_group") as init,
    ):
        rank, world_size, device = work.join()
    selected.append(device)
    call = init.call_args or mock.call()
    backend = (*call.args, call.kwargs.get("backend"))[0]
    return gpus, (rank, world_size), torch.device(device).type, selected_gpu(), init.call_count, backend


@own_gpu.judge
def _(seen: Any) -> None:
    for gpus, (rank, world_size), kind, gpu, groups, backend in seen:
        told = f"join(): yours rank {rank!r} of {world_size!r}, wanted 5 of 8"
        expect((rank, world_size) == (5, 8), told, "which of torchrun's variables count over all nodes?")
        node, wanted = f"on a node with {gpus} GPU(s)", 5 % gpus
        expect(kind == "cuda", f"{node} the device is the {kind}", "on what condition does a process use a GPU?")
        expect(gpu == wanted, f"{node}, for process {wanted}: yours GPU {gpu}, wanted GPU {wanted}")
        expect(groups == 1, "there is no process group", "how many processes are there on all nodes?")
        speaks = backend is None or "nccl" in backend
        expect(speaks, f"GPUs speak over {backend}", "which backend is for which kind of device?")


@check(
    "the batch of all processes has the size that was asked for", "what do make_loader's arguments tell it?", ranks=2
)
def global_batch(work: ModuleType) -> object:
    alone = list(work.make_loader(numbered(), 8, 0, 1))
    rank, world_size = group()
    return alone, *(list(work.make_loader(numbered(count), 8, rank, world_size)) for count in (24, 21))


@global_batch.judge
def _(*ranks: Any) -> None:
    alone, even, uneven = zip(*ranks, strict=True)
    batches = global_batches(uneven)
    sizes = [len(labels) for _, labels in batches]
    told = f"batches of 8, of 21 examples and 2 processes: yours {sizes}, wanted [8, 8, 6]"
    left_over = "what becomes of examples that do not fill a batch, or are too few for all processes?"
    of_whom = "whose batch size is the argument, and whose is the loader's?"
    expect(sizes == [8, 8, 6], told, left_over if sizes[:2] == [8, 8] else of_whom)
    examples = {image.item() for images, _ in batches for image in images}
    told = f"only {len(examples)} of 21 examples were seen in an epoch"
    expect(len(examples) == 21, told, "how do the samplers know which share of which order is whose?")
    found, wanted = ([sorted(images.tolist()) for images, _ in global_batches(one)] for one in (even, alone[:1]))
    expect(
        found == wanted, "two processes have other batches than one alone", "does one process have the same sampler?"
    )


@check(
    "the replicas train as one process does",
    "what must happen to the gradients between backward() and step()?",
    ranks=2,
)
def same_training(work: ModuleType) -> object:
    rank, world_size = group()
    network, buffers = make_model(seed=rank), []  # ranks draw different weights
    network.register_buffer("buffer", torch.tensor(0))

    def update(*_: object) -> None:
        buffers.append(network.buffer.item())
        network.buffer += rank

    network.register_forward_hook(update)
    model = work.wrap(network, world_size)
    loader = work.make_loader(numbered(), 8, rank, world_size)
    work.train_epoch(model, loader, torch.optim.SGD(model.parameters(), lr=0.5), 0, CPU)
    return flat_weights(network), list(loader), buffers


@same_training.judge
def _(*ranks: Any) -> None:
    (weights, other_weights), batches, (buffers, other_buffers) = zip(*ranks, strict=True)
    start, other_start = (flat_weights(make_model(seed)) for seed in (0, 1))
    updates = torch.tensor([weights, other_weights]) - torch.stack([start, other_start])
    hint = "with whose weights does each process begin?" if (updates[0] - updates[1]).abs().max() < 1e-6 else ""
    expect(weights == other_weights, "after an epoch the replicas' weights are not the same", hint)
    model = make_model(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for images, labels in global_batches(batches):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    difference = largest_difference([weights], [flat_weights(model)])
    told = f"one process with the same batches gets weights that are {difference:.1e} away"
    expect(difference < 1e-12, told, "which gradients would one process have?")
    told = f"the buffer of rank 1 in the forward passes: yours {other_buffers}, wanted that of rank 0, {buffers}"
    expect(other_buffers == buffers, told, "what else do the processes share?")


@check("every epoch has another order, the same in all processes", "what does the sampler's order depend on?", ranks=2)
def orders(work: ModuleType) -> object:
    return images_seen(work, *group())


@orders.judge
def _(*ranks: Any) -> None:
    for epoch, (first, second) in enumerate(zip(*ranks, strict=True)):
        expect(len({*first, *second}) == 24, f"in epoch {epoch} both processes had the same examples")
    for seen in ranks:
        expect_shuffled(seen)


@check("one process alone shuffles, too, and in every epoch anew", "what must be told to the sampler of one process?")
def orders_alone(work: ModuleType) -> object:
    return images_seen(work, 0, 1)


@orders_alone.judge
def _(seen: Any) -> None:
    for epoch, images in enumerate(seen):
        expect(len(set(images)) == 24, f"in epoch {epoch} it trained on {len(set(images))} of 24 examples")
    expect_shuffled(seen)


@check(
    "the loss is the mean over the examples of all, in all processes",
    "whose losses are added up, and by the number of whose examples are they divided?",
    ranks=2,
)
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
    for case, (count, of) in enumerate(((24, ""), (12, ", 7 of rank 0 and 5 of rank 1"))):
        wanted = F.cross_entropy(make_model(seed=0)(images[:count]), labels[:count]).item()
        for (rank, losses), hint in zip(enumerate(ranks), ("", "which processes have the sums?"), strict=True):
            told = f"the mean over {count} examples{of}, in rank {rank}: yours {losses[case]:.6f}, wanted {wanted:.6f}"
            expect(abs(losses[case] - wanted) < 1e-9, told, hint)
