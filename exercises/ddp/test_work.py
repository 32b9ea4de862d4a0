from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from exercises.conftest import check_near, make_linear, train_alone


def numbered(count=24):
    """Examples that can be recognised: the image of example n is n / count."""
    return TensorDataset(torch.arange(count, dtype=torch.float64)[:, None] / count, torch.arange(count) % 3)


def train(work, model, loader, epoch=0, lr=0.0):
    return work.train_epoch(model, loader, torch.optim.SGD(model.parameters(), lr=lr), epoch, torch.device("cpu"))


def test_joins(work, ranks):
    """two processes make one group, and a program without torchrun is one process"""

    def join():
        rank, world_size, device = work.join()
        dist.barrier()  # else rank 0, which holds the store, may end while rank 1 still joins
        return rank, world_size, device.type, dist.get_rank()

    hint = "rank, number of processes, device, rank in the group: which variables does torchrun set?"
    assert ranks(join, 2, group=False) == [(0, 2, "cpu", 0), (1, 2, "cpu", 1)], hint
    assert work.join()[:2] == (0, 1), "without torchrun: what stands in the environment then?"


def test_own_gpu(work, monkeypatch):
    """each process has a GPU of its own, where there are some"""
    for name, value in {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    gpus = mock.Mock(is_available=lambda: True, device_count=lambda: 4)
    with mock.patch("torch.cuda", gpus), mock.patch("torch.distributed.init_process_group") as init:
        rank, world_size, device = work.join()
    assert (rank, world_size) == (5, 8), "process 5 of 8: which of torchrun's variables count over all nodes?"
    selected = gpus.set_device.call_args
    number = device.index if device.index is not None or not selected else torch.device(selected.args[0]).index
    hint = "process 5 is number 1 of its node, which has 4 GPUs: which one is its?"
    assert (device.type, number) == ("cuda", 1), hint
    assert "nccl" in str(init.call_args), "which backend is for GPUs?"


def test_global_batch(work, ranks):
    """the batch of all processes has the size that was asked for"""
    shares = ranks(lambda: list(work.make_loader(numbered(21), 8, dist.get_rank(), 2)), 2)
    sizes = [[len(labels) for _, labels in share] for share in shares]
    hint = "21 examples, batches of 8, 2 processes: whose batch size is the argument, and whose is the loader's?"
    assert sizes == [[4, 4, 3]] * 2, hint
    hint = "examples seen in an epoch: how do the samplers know which share of which order is whose?"
    assert len({image.item() for share in shares for images, _ in share for image in images}) == 21, hint


def test_same_training(work, ranks):
    """the replicas train as one process does"""

    def replica():
        rank = dist.get_rank()
        network, loader = make_linear(1, seed=rank), work.make_loader(numbered(), 8, rank, 2)
        network.register_buffer("buffer", torch.tensor(rank))
        train(work, work.wrap(network, 2), loader, lr=0.5)
        assert network.buffer == 0, f"the buffer of rank {rank} after an epoch: what else do the processes share?"
        return list(network.parameters()), list(loader)

    replicas, shares = zip(*ranks(replica, 2))
    model = make_linear(1, seed=0)
    batches = [[torch.cat(parts) for parts in zip(*step)] for step in zip(*shares, strict=True)]
    train_alone(model, torch.optim.SGD(model.parameters(), lr=0.5), batches)
    for rank, weights in enumerate(replicas):
        hint = "with whose weights does each process begin, and which gradients would one process have?"
        check_near(f"rank {rank}: a weight after an epoch", weights, model.parameters(), hint)


def test_orders(work, ranks):
    """every epoch has another order, the same in all processes"""

    def look():
        rank, world_size = dist.get_rank(), dist.get_world_size()
        loader, model, seen = work.make_loader(numbered(), 8, rank, world_size), make_linear(1), []
        model.register_forward_hook(lambda layer, inputs, output: seen[-1].extend(inputs[0].flatten().tolist()))
        for epoch in range(6):
            seen.append([])
            train(work, model, loader, epoch)
        return seen

    for world_size in (1, 2):
        seen = ranks(look, world_size)
        for epoch, shares in enumerate(zip(*seen)):
            hint = f"epoch {epoch}, {world_size} process(es): the number of different examples that they see"
            assert len(set().union(*shares)) == 24, hint
            assert shares[0] != sorted(shares[0]), f"epoch {epoch} has the order of the data set: who shuffles it?"
        hint = "different orders in 6 epochs: which call tells the sampler that an epoch begins?"
        assert len(set(map(tuple, seen[0]))) == 6, hint


def test_whole_loss(work, ranks):
    """the loss is the mean over the examples of all, in all processes"""

    def loss():
        share = TensorDataset(*(tensor[:12].split([7, 5])[dist.get_rank()] for tensor in numbered().tensors))
        return train(work, make_linear(1), DataLoader(share, 4, sampler=DistributedSampler(share, 1, 0)))

    images, labels = (tensor[:12] for tensor in numbered().tensors)
    wanted = F.cross_entropy(make_linear(1)(images), labels).item()
    hint = "two processes with shares of 7 and 5 examples: whose losses are added up, and divided by what?"
    assert ranks(loss, 2) == pytest.approx([wanted] * 2, abs=1e-9), hint
