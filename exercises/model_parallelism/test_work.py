from functools import partial
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from exercises.conftest import check_near, train_alone

CASES = ((10, torch.float32, 0), (4, torch.float64, 0), (5, torch.float64, 1))  # part's size, dtype, rank of stage 0


def prepare(dtype):
    """A network of two stages, images, and labels."""
    torch.manual_seed(1)
    stages = nn.Sequential(nn.Linear(4, 6), nn.Tanh()).to(dtype), nn.Linear(6, 3).to(dtype)
    return nn.Sequential(*stages), torch.randn(10, 4).to(dtype), torch.randint(3, (10,))


def train(work, part_size, dtype=torch.float32, first=0):
    """Trains this rank's stage for a step: the loss, the weights after it, and the order of events."""
    number, other, events, send = abs(dist.get_rank() - first), 1 - dist.get_rank(), [], dist.ProcessGroup.send
    network, images, labels = prepare(dtype)
    stage, parts = network[number], list([images, labels][number].split(part_size))
    stage.register_forward_hook(lambda *_: events.append("forward"))
    next(stage.parameters()).register_hook(lambda _: events.append("backward"))
    step = partial(work.second_step, width=6) if number else work.first_step
    with mock.patch.object(dist.ProcessGroup, "send", lambda *what: (events.append("send"), send(*what))[1]):
        loss = step(stage, torch.optim.SGD(stage.parameters(), lr=0.5), parts, other=other)
    return loss, list(stage.parameters()), events


def test_same_training(work, ranks):
    """a batch trains as one process does"""
    for part_size, dtype, first in CASES:
        told = f"10 examples in {dtype}, {part_size} in a part, stage 0 has rank {first}"
        seen = ranks(lambda case=(part_size, dtype, first): train(work, *case), 2, seconds=6)
        (_, first_weights, _), (loss, second_weights, _) = seen[::-1] if first else seen
        (network, images, labels), limit = prepare(dtype), 1e-12 if dtype == torch.float64 else 1e-5
        hint = f"{told}, the mean loss: what goes into F.cross_entropy, and by what is the sum divided?"
        assert loss == pytest.approx(F.cross_entropy(network(images), labels).item(), abs=limit), hint
        train_alone(network, torch.optim.SGD(network.parameters(), lr=0.5), [(images, labels)])
        hint = "what does each part's backward() begin with and reach, and what is sent?"
        check_near(f"{told}: a weight", first_weights + second_weights, network.parameters(), hint, limit)


def test_schedule(work, ranks):
    """all parts go forward, each sent at once, before the first comes back"""
    (*_, first), (*_, second) = ranks(lambda: train(work, 4), 2, seconds=6)
    assert first == ["forward", "send"] * 3 + ["backward"] * 3, "stage 0, 3 parts: what does stage 1 do meanwhile?"
    assert second == ["forward"] * 3 + ["backward", "send"] * 3, "stage 1, 3 parts: who waits for what?"


def test_bubble(work):
    """the bubble of a pipeline"""
    for stages, parts, wanted in (2, 1, 0.5), (2, 3, 0.25), (4, 4, 3 / 7), (4, 29, 3 / 32), (1, 4, 0.0):
        hint = f"{stages} stage(s), {parts} part(s): draw it: how many boxes are empty, and how many are there in all?"
        assert work.bubble(stages, parts) == pytest.approx(wanted, abs=1e-12), hint
