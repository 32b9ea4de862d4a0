"""Checks of checkpoints."""

import contextlib
import math
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from types import ModuleType
from typing import Any
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


def weights(network: nn.Module) -> list[Any]:
    return [value.tolist() for value in network.state_dict().values()]


def weights_after(epochs: int) -> list[Any]:
    """The weights of a training on one device that was never interrupted."""
    network, *rest = make_training(seed=0)
    train(network, *rest, range(epochs))
    return weights(network)


def wrapped(network: nn.Module) -> nn.Module:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return DistributedDataParallel(network)


@check(
    "training goes on as if it had not been interrupted",
    "what does the optimizer remember, and the schedule? which epoch comes next?",
)
def resumes(work: ModuleType) -> object:
    half, optimizer, schedule = make_training(seed=0)
    train(half, optimizer, schedule, range(2))
    work.save_checkpoint(PATH, half, optimizer, schedule, 1)
    again, optimizer, schedule = make_training(seed=1)
    first = work.load_checkpoint(PATH, again, optimizer, schedule)
    loaded = weights(again)
    train(again, optimizer, schedule, range(2, 4))
    return loaded, first, weights(again)


@resumes.judge
def _(seen: Any) -> None:
    loaded, first, trained = seen
    expect(loaded == weights_after(2), "the weights that were loaded are not those that were saved")
    expect(first == 2, f"after epochs 0 and 1 it goes on with epoch {first}")
    expect(trained == weights_after(4), "2 epochs and 2 more have not led to the weights of 4 in a row")


RATES = {2: 0.075, 3: 0.05, 5: 0.1 * (1 + math.cos(math.pi * 5 / 6)) / 2}  # by the number of epochs done


@check("the rate goes on where it was", "who steps the rate?")
def rate(work: ModuleType) -> object:
    network, optimizer, schedule = make_training(seed=0)
    train(network, optimizer, schedule, range(2))
    work.save_checkpoint(PATH, network, optimizer, schedule, 1)
    again, optimizer, schedule = make_training(seed=1)
    work.load_checkpoint(PATH, again, optimizer, schedule)
    rates = []
    for epochs in RATES:
        train(again, optimizer, schedule, range(schedule.last_epoch, epochs))
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


@rate.judge
def _(rates: Any) -> None:
    for (epochs, wanted), found in zip(RATES.items(), rates, strict=True):
        expect(
            abs(found - wanted) < 1e-12,
            f"a cosine from 0.1 to 0 in 6 epochs, after {epochs}: yours {found:g}, wanted {wanted:g}",
        )


@check("a checkpoint made with DDP goes on without", "under which names are the weights in your file?")
def from_ddp(work: ModuleType) -> object:
    network, optimizer, schedule = make_training(seed=0)
    model = wrapped(network)
    train(model, optimizer, schedule, range(2))
    work.save_checkpoint(PATH, model, optimizer, schedule, 1)
    again, optimizer, schedule = make_training(seed=1)
    work.load_checkpoint(PATH, again, optimizer, schedule)
    return weights(again)


@from_ddp.judge
def _(loaded: Any) -> None:
    expect(loaded == weights_after(2), "the weights that were loaded are not those that were saved")


@check("weights saved of a DDP model answer on one device", "print the names in the file; which does the network want?")
def prefixed(work: ModuleType) -> object:
    torch.save(wrapped(make_network(seed=0)).state_dict(), PATH)
    return weights(work.load_for_inference(PATH, make_network(seed=1)))


@prefixed.judge
def _(loaded: Any) -> None:
    expect(loaded == weights(make_network(seed=0)), "the weights that were loaded are not those in the file")


@check("so do weights saved of the network itself", "does each file have the prefix?")
def unprefixed(work: ModuleType) -> object:
    torch.save(make_network(seed=0).state_dict(), PATH)
    return weights(work.load_for_inference(PATH, make_network(seed=1)))


@unprefixed.judge
def _(loaded: Any) -> None:
    expect(loaded == weights(make_network(seed=0)), "the weights that were loaded are not those in the file")


@check("the network answers as it should, not as it trains", "dropout, batch normalisation")
def answers(work: ModuleType) -> object:
    torch.save(make_network(seed=0).state_dict(), PATH)
    loaded = work.load_for_inference(PATH, make_network(seed=1))
    return [layer.training for layer in loaded.modules()]


@answers.judge
def _(modes: Any) -> None:
    expect(bool(modes) and not any(modes), "the network is in training mode")


@check("a file with other weights is refused", "what does strict=False do with names that do not match?")
def refuses(work: ModuleType) -> object:
    right = make_network(seed=0).state_dict()
    torch.save(right, PATH)
    work.load_for_inference(PATH, make_network(seed=1))
    fewer = {name: values for name, values in right.items() if name != "outer.module.bias"}
    results = []
    for wrong in (fewer, {**right, "more.bias": torch.zeros(2)}):
        torch.save(wrong, PATH)
        try:
            loaded = work.load_for_inference(PATH, make_network(seed=1))
        except Exception as error:  # noqa: BLE001 - however it refuses
            results.append({"error": repr(error)})
        else:
            results.append({"loaded": weights(loaded)})
    return results


@refuses.judge
def _(results: Any) -> None:
    for what, result in zip(("one is missing", "one is too many"), results, strict=True):
        unchanged = result.get("loaded") == weights(make_network(seed=1))
        expect("error" in result, f"{what} in the file, and it was loaded{' - not at all' if unchanged else ''}")


@check(
    "files that a GPU has saved are read where there is none",
    "where does torch.load put a tensor unless told otherwise?",
)
def from_gpu(work: ModuleType) -> object:
    network, optimizer, schedule = make_training(seed=0)
    train(network, optimizer, schedule, range(2))
    with mock.patch("torch.serialization.location_tag", return_value="cuda:2"):
        work.save_checkpoint(PATH, network, optimizer, schedule, 1)
        torch.save(network.state_dict(), "weights.pt")
    again, optimizer, schedule = make_training(seed=1)
    loaded = []
    for load in (
        lambda: work.load_checkpoint(PATH, again, optimizer, schedule),
        lambda: work.load_for_inference(Path("weights.pt"), again),
    ):
        try:
            load()
        except RuntimeError as error:
            if "CUDA" in str(error):
                return {"error": str(error)}
            raise
        loaded.append(weights(again))
    return {"loaded": loaded}


@from_gpu.judge
def _(seen: Any) -> None:
    expect("error" not in seen, "tensors that were saved on a GPU were to go to a GPU")
    checkpoint, inference = seen["loaded"]
    saved = weights_after(2)
    expect(checkpoint == saved == inference, "the weights that were loaded are not those in the file")


class Trap:
    """Imitates code in a file from an unknown source: a call that is made when the file is read."""

    def __reduce__(self) -> tuple:
        return os.mkdir, ("trapped",)


@check("code in a file is not run", "what does torch.load read apart from weights, if it is allowed to?")
def no_code(work: ModuleType) -> object:
    right = make_network(seed=0).state_dict()
    torch.save(right, PATH)
    work.load_for_inference(PATH, make_network(seed=1))
    torch.save({**right, "more": Trap()}, PATH)
    with contextlib.suppress(pickle.UnpicklingError, RuntimeError):
        work.load_for_inference(PATH, make_network(seed=1))
    return Path("trapped").exists()


@no_code.judge
def _(trapped: Any) -> None:
    expect(trapped is False, "a file made a folder on this machine when it was read")
