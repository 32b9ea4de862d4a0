import contextlib
from collections import OrderedDict, UserDict
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR

from exercises.conftest import check_near, train_alone

PATH = Path("after-2.ckpt")


def make_training(seed):
    """Names begin with letters of "module." or have it in the middle; a layer without weights is called `module`."""
    torch.manual_seed(seed)
    outer = nn.Sequential(OrderedDict(module=nn.Linear(3, 2)))
    layers = OrderedDict(lower=nn.Linear(3, 3), norm=nn.BatchNorm1d(3), module=nn.ReLU(), outer=outer)
    network = nn.Sequential(layers).double()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    return network, optimizer, CosineAnnealingLR(optimizer, 12)


def train(network, optimizer, schedule, epochs):
    images, labels = torch.arange(12, dtype=torch.float64).reshape(4, 3) ** 2, torch.arange(4) % 2
    for _ in range(2 * epochs):  # 2 steps an epoch
        train_alone(network, optimizer, [(images, labels)])
        schedule.step()


def check_same(what, network, other, hint):
    check_near(what, network.state_dict().values(), other.state_dict().values(), hint, limit=0)


def test_names(work, ranks):
    """the file has the weights' own names, with and without DDP"""
    network, *others = make_training(seed=0)

    def save():
        for model in (network, DistributedDataParallel(network)):
            work.save_checkpoint(PATH, model, *others, 0)
            content = repr(torch.load(PATH, weights_only=False))
            missing = [name for name in network.state_dict() if f"'{name}'" not in content]
            assert missing == [], f"names that a file of {type(model).__name__} lacks: which does it have?"

    ranks(save, 1)


def test_resumes(work):
    """training goes on as if it had not been interrupted"""
    whole, half, again = (make_training(seed) for seed in (0, 0, 1))
    train(*whole, 4)
    train(*half, 2)
    work.save_checkpoint(PATH, *half, 1)
    first = work.load_checkpoint(PATH, *again)
    assert first == 2, "the epoch to resume with after epoch 1: is the epoch in the file done?"
    check_same("a loaded weight", again[0], half[0], "are all in the file, and who loads them?")
    train(*again, 2)
    hint = "what do optimizer and schedule remember?"
    check_same("a weight after 2 epochs and 2 more", again[0], whole[0], hint)


def test_inference(work):
    """weights of DDP, and of the network itself, are ready for inference"""
    for prefix in ("", "module."):
        network, other = (make_training(seed)[0] for seed in (0, 1))
        torch.save({prefix + name: values for name, values in network.state_dict().items()}, PATH)
        loaded = work.load_for_inference(PATH, other)
        check_same(f"names with {prefix!r} in front: a loaded weight", loaded, network, "which file has which names?")
        modes = [name or "the network" for name, layer in loaded.named_modules() if layer.training]
        assert modes == [], "layers in training mode: in which mode is batch normalisation?"


def test_refuses(work):
    """a file with other weights is refused, and code in it is not run"""
    network = make_training(seed=0)[0]
    right = network.state_dict()
    torch.save(right, PATH)
    work.load_for_inference(PATH, network)  # a right file is not refused
    bias = right["outer.module.bias"]
    for what, content in {
        "lacks a weight": {name: values for name, values in right.items() if values is not bias},
        "has a weight too many": {**right, "more": bias},
        "has a weight of another shape": {**right, "outer.module.bias": bias[:1]},
        "has an object of a class, which runs code (a UserDict)": UserDict(right),
    }.items():
        torch.save(content, PATH)
        with contextlib.suppress(Exception):  # however it refuses
            work.load_for_inference(PATH, network)
            pytest.fail(f"a file was loaded that {what}: which call should refuse it?", pytrace=False)


def test_from_gpu(work):
    """files that a GPU has saved are read where there is none"""
    training = make_training(seed=0)
    with mock.patch("torch.serialization.location_tag", return_value="cuda:2"):
        work.save_checkpoint(PATH, *training, 1)
        torch.save(training[0].state_dict(), "weights.pt")
    work.load_checkpoint(PATH, *training)
    work.load_for_inference(Path("weights.pt"), training[0])
