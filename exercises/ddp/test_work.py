"""Checks of ddp."""

import os
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from exercises.conftest import check_new_orders, largest_difference

CPU = torch.device("cpu")


def group():
    """This process's rank, and how many there are; as on two nodes, where each process is the first one of its node."""
    dist.init_process_group("gloo")
    os.environ["LOCAL_RANK"] = "0"
    return dist.get_rank(), dist.get_world_size()


def numbered(count=24):
    """Examples that can be recognised: the image of example n is n / count."""
    return TensorDataset(torch.arange(count, dtype=torch.float64)[:, None] / count, torch.arange(count) % 3)


def make_model(seed):
    torch.manual_seed(seed)
    return nn.Linear(1, 3).double()


def train(work, model, loader, epoch=0, lr=0.0):
    return work.train_epoch(model, loader, torch.optim.SGD(model.parameters(), lr=lr), epoch, CPU)


def global_batches(ranks):
    """The batches of all ranks, put together step by step."""
    return [tuple(torch.cat(parts) for parts in zip(*step)) for step in zip(*ranks, strict=True)]


def test_joins(work, ranks):
    """two processes make one group"""

    def join():
        rank, world_size, device = work.join()
        assert dist.is_initialized(), "there is no process group: which variables does torchrun set?"
        return rank, world_size, device.type, dist.get_rank()

    hint = "rank, number of processes, device, rank in the group: which variables does torchrun set?"
    assert ranks(join, 2) == [(0, 2, "cpu", 0), (1, 2, "cpu", 1)], hint


def test_joins_alone(work):
    """without torchrun it is a program with one process"""
    assert work.join()[:2] == (0, 1), "rank and number of processes: what stands in the environment then?"


def test_own_gpu(work, monkeypatch):
    """each process has a GPU of its own, where there are some"""
    for name, value in {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    with (
        mock.patch.multiple(
            "torch.cuda", is_available=lambda: True, device_count=lambda: 4, set_device=mock.DEFAULT
        ) as gpu,
        mock.patch("torch.distributed.init_process_group") as init,
    ):
        rank, world_size, device = work.join()
    assert (rank, world_size) == (5, 8), "process 5 of 8: which of torchrun's variables count over all nodes?"
    selected = gpu["set_device"].call_args
    number = device.index if device.index is not None or not selected else torch.device(selected.args[0]).index
    assert (device.type, number) == ("cuda", 1), (
        "process 5 is number 1 of its node, which has 4 GPUs: which one is its?"
    )
    assert "nccl" in str(init.call_args), "which backend is for GPUs?"


def test_global_batch(work, ranks):
    """the batch of all processes has the size that was asked for"""

    def load():
        rank, world_size = group()
        return [list(work.make_loader(numbered(count), 8, rank, world_size)) for count in (24, 21)]

    even, uneven = map(global_batches, zip(*ranks(load, 2)))
    hint = "21 examples, batches of 8, 2 processes: whose batch size is the argument, and whose is the loader's?"
    assert [len(labels) for _, labels in uneven] == [8, 8, 6], hint
    hint = "examples seen in an epoch: how do the samplers know which share of which order is whose?"
    assert len({image.item() for images, _ in uneven for image in images}) == 21, hint
    alone = list(work.make_loader(numbered(), 8, 0, 1))
    found, wanted = ([sorted(images.flatten().tolist()) for images, _ in batches] for batches in (even, alone))
    assert found == wanted, "the batches of two processes and of one: does one process have the same sampler?"


def test_same_training(work, ranks):
    """the replicas train as one process does"""

    def replica():
        rank, world_size = group()
        network, buffers = make_model(seed=rank), []  # ranks draw different weights
        network.register_buffer("buffer", torch.tensor(rank))
        network.register_forward_hook(lambda *_: buffers.append(network.buffer.item()))
        loader = work.make_loader(numbered(), 8, rank, world_size)
        train(work, work.wrap(network, world_size), loader, lr=0.5)
        return [weight.detach() for weight in network.parameters()], list(loader), buffers

    (weights, other_weights), batches, (_, buffers) = zip(*ranks(replica, 2))
    apart = largest_difference(weights, other_weights)
    assert apart == 0, f"after an epoch the replicas' weights are {apart:.1e} apart: with whose does each one begin?"
    model = make_model(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for images, labels in global_batches(batches):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    away = largest_difference(weights, [weight.detach() for weight in model.parameters()])
    assert away < 1e-12, f"one process gets weights that are {away:.1e} away: which gradients would it have?"
    assert buffers == [0, 0, 0], "the buffer of rank 1 in each forward pass: what else do the processes share?"


@pytest.mark.parametrize("world_size", [1, 2])
def test_orders(work, ranks, world_size):
    """every epoch has another order, the same in all processes"""

    def look():
        rank, _ = group()
        loader, model, seen = work.make_loader(numbered(), 8, rank, world_size), make_model(0), []
        model.register_forward_hook(lambda layer, inputs, output: seen[-1].extend(inputs[0].flatten().tolist()))
        for epoch in range(6):
            seen.append([])
            train(work, model, loader, epoch)
        return seen

    seen = ranks(look, world_size)
    for epoch, shares in enumerate(zip(*seen)):
        hint = f"epoch {epoch}, {world_size} process(es): the number of different examples that they see"
        assert len(set().union(*shares)) == 24, hint
        assert list(shares[0]) != sorted(shares[0]), f"epoch {epoch} has the order of the data set: who shuffles it?"
    check_new_orders(seen[0])


def test_whole_loss(work, ranks):
    """the loss is the mean over the examples of all, in all processes"""

    def losses():
        rank, world_size = group()
        share = TensorDataset(*(tensor[:7] if rank == 0 else tensor[7:12] for tensor in numbered().tensors))
        unequal = DataLoader(share, 4, sampler=DistributedSampler(share, 1, 0))
        loaders = work.make_loader(numbered(), 8, rank, world_size), unequal
        return [train(work, make_model(seed=0), loader) for loader in loaders]

    images, labels = numbered().tensors
    wanted = [F.cross_entropy(make_model(seed=0)(images[:count]), labels[:count]).item() for count in (24, 12)]
    hint = "shares of 12 and 12, then of 7 and 5 examples: whose losses are added up, and divided by what?"
    for found in ranks(losses, 2):
        assert found == pytest.approx(wanted, abs=1e-9), hint
