"""Checks of checkpoints."""

import contextlib
import copy
import math
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from types import ModuleType
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR

from exercises.checking import check, expect

PATH = Path("checkpoint.pt")


def make_network(seed: int) -> nn.Module:
    """A network: some names begin with letters of "module.", and two names contain "module." in the middle."""
    torch.manual_seed(seed)
    outer = nn.Sequential(OrderedDict(module=nn.Linear(3, 2)))
    layers = OrderedDict(lower=nn.Linear(3, 3), norm=nn.BatchNorm1d(3), drop=nn.Dropout(0.5), outer=outer)
    return nn.Sequential(layers).double()


def make_training(seed: int) -> tuple[nn.Module, torch.optim.Optimizer, CosineAnnealingLR]:
    network = make_network(seed)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    return network, optimizer, CosineAnnealingLR(optimizer, 6)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, schedule: CosineAnnealingLR, epochs: range) -> None:
    for epoch in epochs:
        torch.manual_seed(epoch)  # for dropout
        optimizer.zero_grad()
        (model(torch.arange(12, dtype=torch.float64).reshape(4, 3)) ** 2).sum().backward()
        optimizer.step()
        schedule.step()


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(values, others) for values, others in pairs)


def wrapped(network: nn.Module) -> nn.Module:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return DistributedDataParallel(network)


@check(
    "training goes on as if it had not been interrupted",
    "what does the optimizer remember, and the schedule? which epoch comes next?",
)
def resumes(work: ModuleType) -> None:
    whole, *rest = make_training(seed=0)
    train(whole, *rest, range(4))
    half, optimizer, schedule = make_training(seed=0)
    train(half, optimizer, schedule, range(2))
    work.save_checkpoint(PATH, half, optimizer, schedule, 1)
    again, optimizer, schedule = make_training(seed=1)
    first = work.load_checkpoint(PATH, again, optimizer, schedule)
    expect(same(again, half), "the weights that were loaded are not those that were saved")
    expect(first == 2, f"after epochs 0 and 1 it goes on with epoch {first}")
    train(again, optimizer, schedule, range(first, 4))
    expect(same(again, whole), "2 epochs and 2 more have not led to the weights of 4 in a row")


@check("the rate goes on where it was", "who steps the rate?")
def rate(work: ModuleType) -> None:
    network, optimizer, schedule = make_training(seed=0)
    train(network, optimizer, schedule, range(2))
    work.save_checkpoint(PATH, network, optimizer, schedule, 1)
    again, optimizer, schedule = make_training(seed=1)
    work.load_checkpoint(PATH, again, optimizer, schedule)
    for epochs, wanted in ((2, 0.075), (3, 0.05), (5, 0.1 * (1 + math.cos(math.pi * 5 / 6)) / 2)):
        train(again, optimizer, schedule, range(schedule.last_epoch, epochs))
        found = optimizer.param_groups[0]["lr"]
        expect(
            abs(found - wanted) < 1e-12,
            f"a cosine from 0.1 to 0 in 6 epochs is {wanted:g} after {epochs}, not {found:g}",
        )


@check("a checkpoint made with DDP goes on without", "under which names are the weights in your file?")
def from_ddp(work: ModuleType) -> None:
    network, optimizer, schedule = make_training(seed=0)
    model = wrapped(network)
    train(model, optimizer, schedule, range(2))
    work.save_checkpoint(PATH, model, optimizer, schedule, 1)
    again, optimizer, schedule = make_training(seed=1)
    work.load_checkpoint(PATH, again, optimizer, schedule)
    expect(same(again, network), "the weights that were loaded are not those that were saved")


@check("weights saved of a DDP model answer on one device", "print the names in the file; which does the network want?")
def prefixed(work: ModuleType) -> None:
    network = make_network(seed=0)
    torch.save(wrapped(network).state_dict(), PATH)
    loaded = work.load_for_inference(PATH, make_network(seed=1))
    expect(same(loaded, network), "the weights that were loaded are not those in the file")


@check("so do weights saved of the network itself", "does each file have the prefix?")
def unprefixed(work: ModuleType) -> None:
    network = make_network(seed=0)
    torch.save(network.state_dict(), PATH)
    loaded = work.load_for_inference(PATH, make_network(seed=1))
    expect(same(loaded, network), "the weights that were loaded are not those in the file")


@check("the network answers as it should, not as it trains", "dropout, batch normalisation")
def answers(work: ModuleType) -> None:
    network = make_network(seed=0)
    torch.save(network.state_dict(), PATH)
    loaded = work.load_for_inference(PATH, make_network(seed=1))
    modes = [layer.training for layer in loaded.modules()]
    expect(not any(modes), "the network is in training mode")


@check("a file with other weights is refused", "what does strict=False do with names that do not match?")
def refuses(work: ModuleType) -> None:
    weights = make_network(seed=0).state_dict()
    torch.save(weights, PATH)
    work.load_for_inference(PATH, make_network(seed=1))
    for what, wrong in (
        ("one is missing", {name: values for name, values in weights.items() if name != "outer.module.bias"}),
        ("one is too many", {**weights, "more.bias": torch.zeros(2)}),
    ):
        torch.save(wrong, PATH)
        network = make_network(seed=1)
        before = copy.deepcopy(network)
        try:
            loaded = work.load_for_inference(PATH, network)
        except Exception:  # noqa: BLE001 - however it refuses
            continue
        expect(False, f"{what} in the file, and it was loaded{' - not at all' if same(loaded, before) else ''}")


@check(
    "files that a GPU has saved are read where there is none",
    "where does torch.load put a tensor unless told otherwise?",
)
def from_gpu(work: ModuleType) -> None:
    network, optimizer, schedule = make_training(seed=0)
    train(network, optimizer, schedule, range(2))
    with mock.patch("torch.serialization.location_tag", return_value="cuda:2"):
        work.save_checkpoint(PATH, network, optimizer, schedule, 1)
        torch.save(network.state_dict(), "weights.pt")
    again, optimizer, schedule = make_training(seed=1)
    for load in (
        lambda: work.load_checkpoint(PATH, again, optimizer, schedule),
        lambda: work.load_for_inference(Path("weights.pt"), again),
    ):
        try:
            load()
        except RuntimeError as error:
            expect("CUDA" not in str(error), "tensors that were saved on a GPU were to go to a GPU")
            raise
        expect(same(again, network), "the weights that were loaded are not those in the file")


class Trap:
    """Imitates code in a file from an unknown source: a call that is made when the file is read."""

    def __reduce__(self) -> tuple:
        return os.mkdir, ("trapped",)


@check("code in a file is not run", "what does torch.load read apart from weights, if it is allowed to?")
def no_code(work: ModuleType) -> None:
    weights = make_network(seed=0).state_dict()
    torch.save(weights, PATH)
    work.load_for_inference(PATH, make_network(seed=1))
    torch.save({**weights, "more": Trap()}, PATH)
    with contextlib.suppress(pickle.UnpicklingError, RuntimeError):
        work.load_for_inference(PATH, make_network(seed=1))
    expect(not Path("trapped").exists(), "a file made a folder on this machine when it was read")
