"""Checks of checkpoints."""

import contextlib
import os
from collections import OrderedDict
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR

PATH = Path("after-2.ckpt")
STEPS = 2  # in an epoch


def make_network(seed):
    """Some names begin with letters of "module.", and two contain "module." in the middle; none begins with it."""
    torch.manual_seed(seed)
    outer = nn.Sequential(OrderedDict(module=nn.Linear(3, 2)))
    layers = OrderedDict(lower=nn.Linear(3, 3), norm=nn.BatchNorm1d(3), module=nn.Dropout(0.5), outer=outer)
    return nn.Sequential(layers).double()


def make_training(seed, epochs=6):
    network = make_network(seed)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    return network, optimizer, CosineAnnealingLR(optimizer, epochs * STEPS)


def train(model, optimizer, schedule, epochs):
    for step in range(epochs.start * STEPS, epochs.stop * STEPS):
        torch.manual_seed(step)  # for dropout
        optimizer.zero_grad()
        (model(torch.arange(12, dtype=torch.float64).reshape(4, 3)) ** 2).mean().backward()
        optimizer.step()
        schedule.step()


def weights(network):
    return {name: value.tolist() for name, value in network.state_dict().items()}


def wrapped(network):
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return DistributedDataParallel(network)


def names_in(content):
    """The keys of a file's dictionaries, also of inner ones."""
    return {*content}.union(*map(names_in, content.values())) if isinstance(content, dict) else set()


def test_names(work, ranks):
    """the file has the weights' own names, with and without DDP"""

    def save():
        network, optimizer, schedule = make_training(seed=0)
        for what, model in {"the network": network, "DistributedDataParallel": wrapped(network)}.items():
            work.save_checkpoint(PATH, model, optimizer, schedule, 0)
            names = names_in(torch.load(PATH, weights_only=False))
            missing = [name for name in network.state_dict() if name not in names]
            assert missing == [], f"names of weights that a file saved of {what} lacks: print the names that it has"

    ranks(save, 1)


def test_resumes(work):
    """training goes on as if it had not been interrupted"""
    whole, *others = make_training(seed=0)
    train(whole, *others, range(4))
    half, *others = make_training(seed=0)
    for epoch in range(2):
        train(half, *others, range(epoch, epoch + 1))
        work.save_checkpoint(PATH, half, *others, epoch)
    again, optimizer, schedule = make_training(seed=1, epochs=9)
    hint = "the epoch to resume with after epoch 1: is the epoch in the file done?"
    assert work.load_checkpoint(PATH, again, optimizer, schedule) == 2, hint
    others = [name for name, value in weights(again).items() if value != weights(half)[name]]
    assert others == [], "weights that loading has not restored: are they all in the file, and who loads them?"
    hint = "a rate that falls from 0.1 to 0 in 6 epochs, after 2: which object holds it, and who changes it?"
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.075), hint
    train(again, optimizer, schedule, range(2, 4))
    hint = "2 epochs and 2 more have not led to the weights of 4 in a row: what do optimizer and schedule remember?"
    assert weights(again) == weights(whole), hint


def test_inference(work, ranks):
    """weights of DDP, and of the network itself, are ready for inference"""

    def load():
        for what, model in {"network": make_network(seed=0), "DDP": wrapped(make_network(seed=0))}.items():
            torch.save(model.state_dict(), PATH)
            loaded = work.load_for_inference(PATH, make_network(seed=1))
            hint = f"the weights of a file from the {what} are not loaded: does it have the prefix, or not?"
            assert weights(loaded) == weights(make_network(seed=0)), hint
            training = [name or "the network" for name, layer in loaded.named_modules() if layer.training]
            assert training == [], "layers in training mode: in which mode are dropout and batch normalisation?"

    ranks(load, 1)


class Trap:
    """Code in a file from an unknown source: a call that is made when the file is read."""

    def __reduce__(self):
        return os.mkdir, ("trapped",)


def test_refuses(work):
    """a file with other weights is refused, and code in it is not run"""
    torch.save(make_network(seed=0).state_dict(), PATH)
    work.load_for_inference(PATH, make_network(seed=1))
    for missing, more in (("outer.module.bias", {}), ("", {"more.bias": torch.zeros(2)})):
        right = make_network(seed=0).state_dict()
        right.pop(missing, None)
        torch.save({**right, **more}, PATH)
        with contextlib.suppress(Exception):  # however it refuses
            work.load_for_inference(PATH, make_network(seed=1))
            pytest.fail(
                f"a file was loaded that lacks {missing or 'nothing'} and has {[*more]}: who compares the names?"
            )
    torch.save({**make_network(seed=0).state_dict(), "more": Trap()}, PATH)
    with contextlib.suppress(Exception):
        work.load_for_inference(PATH, make_network(seed=1))
    assert not Path("trapped").exists(), "a file made a folder when it was read: what does torch.load read, if allowed?"


def test_from_gpu(work):
    """files that a GPU has saved are read where there is none"""
    network, *others = make_training(seed=0)
    with mock.patch("torch.serialization.location_tag", return_value="cuda:2"):
        work.save_checkpoint(PATH, network, *others, 1)
        torch.save(network.state_dict(), "weights.pt")
    work.load_checkpoint(PATH, *make_training(seed=1))
    work.load_for_inference(Path("weights.pt"), make_network(seed=1))
