"""Checks of checkpoints."""

import contextlib
import os
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

PATH = Path("after-2.ckpt")
STEPS = 2  # in an epoch


def make_network(seed: int) -> nn.Module:
    """A network: some names begin with letters of "module.", two contain "module." in the middle; a bias is frozen.

    Its layer `module` has no weights: the network's own names never begin with "module.".
    """
    torch.manual_seed(seed)
    outer = nn.Sequential(OrderedDict(module=nn.Linear(3, 2)))
    outer.module.bias.requires_grad_(False)
    layers = OrderedDict(lower=nn.Linear(3, 3), norm=nn.BatchNorm1d(3), module=nn.Dropout(0.5), outer=outer)
    return nn.Sequential(layers).double()


def make_training(seed: int, epochs: int = 6) -> tuple[nn.Module, torch.optim.Optimizer, CosineAnnealingLR]:
    network = make_network(seed)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    return network, optimizer, CosineAnnealingLR(optimizer, epochs * STEPS)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, schedule: CosineAnnealingLR, epochs: range) -> None:
    for step in range(epochs.start * STEPS, epochs.stop * STEPS):
        torch.manual_seed(step)  # for dropout
        optimizer.zero_grad()
        (model(torch.arange(12, dtype=torch.float64).reshape(4, 3)) ** 2).mean().backward()
        optimizer.step()
        schedule.step()


def weights(network: nn.Module) -> dict[str, Any]:
    return {name: value.tolist() for name, value in network.state_dict().items()}


def expect_same(loaded: Any, saved: dict[str, Any], hint: str = "") -> None:
    others = [name for name in saved if loaded[name] != saved[name]]
    expect(not others, f"after loading, these are not what was saved: {', '.join(others)}", hint)


def weights_after(epochs: int) -> dict[str, Any]:
    """The weights of a training on one device that was never interrupted."""
    network, *rest = make_training(seed=0)
    train(network, *rest, range(epochs))
    return weights(network)


def wrapped(network: nn.Module) -> nn.Module:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return DistributedDataParallel(network)


def names_in(content: Any) -> set[Any]:
    """The names in a file: the keys of its dictionaries, also of inner ones, and those of a network's weights."""
    if isinstance(content, nn.Module):
        content = content.state_dict()
    if isinstance(content, list | tuple):
        content = dict(enumerate(content))
    return {*content}.union(*map(names_in, content.values())) if isinstance(content, dict) else set()


@check(
    "the file has the weights' own names, with and without DDP",
    "print the names in your file: which does the network want, and are they all there?",
)
def names(work: ModuleType) -> object:
    network, optimizer, schedule = make_training(seed=0)
    seen = []
    for model in (network, wrapped(network)):
        work.save_checkpoint(PATH, model, optimizer, schedule, 0)
        held = names_in(torch.load(PATH, weights_only=False)) if PATH.exists() else None
        seen.append(None if held is None else [name for name in network.state_dict() if name not in held])
    return seen


@names.judge
def _(seen: Any) -> None:
    for model, missing in zip(("the network", "DistributedDataParallel"), seen, strict=True):
        expect(missing is not None, f"there is no file {PATH}, the path that was given", "who gives the file its name?")
        expect(not missing, f"saved of {model}, the file lacks {', '.join(missing)}")


@check(
    "training goes on as if it had not been interrupted",
    "what does the optimizer remember, and what becomes of it when its state is loaded?",
)
def resumes(work: ModuleType) -> object:
    half, *others = make_training(seed=0)
    seen = []
    for epoch in range(2):
        train(half, *others, range(epoch, epoch + 1))
        work.save_checkpoint(PATH, half, *others, epoch)
        again, optimizer, schedule = make_training(seed=1, epochs=9)
        seen.append((work.load_checkpoint(PATH, again, optimizer, schedule), weights(again)))
    mode, rates = again.training, [optimizer.param_groups[0]["lr"]]
    train(half, *others, range(2, 4))
    train(again, optimizer, schedule, range(2, 4))
    return weights(half), seen, mode, [*rates, optimizer.param_groups[0]["lr"]], weights(again)


@resumes.judge
def _(seen: Any) -> None:
    half, saved, mode, rates, again = seen
    expect(
        half == weights_after(4),
        "saving changes the training that goes on",
        "what does save_checkpoint change besides writing the file?",
    )
    for epoch, (following, loaded) in enumerate(saved):
        hint = "which epoch is in the file, is the file new, and is the epoch done?"
        seen = f"the epoch to resume with, saved after epoch {epoch}: yours {following}, wanted {epoch + 1}"
        expect(following == epoch + 1, seen, hint)
        expect_same(loaded, weights_after(epoch + 1), "are they all in the file, in which dtype, and who loads them?")
    expect(mode, "after loading, the network is in evaluation mode", "what does loading change apart from the weights?")
    for epochs, wanted, found, hint in (
        (2, 0.075, rates[0], "which object holds the rate, and who changes it?"),
        (4, 0.025, rates[1], "what does a schedule know? print its state_dict()"),
    ):
        seen = f"a rate that falls from 0.1 to 0 in 6 epochs, after {epochs}: yours {found:g}, wanted {wanted:g}"
        expect(abs(found - wanted) < 1e-12, seen, hint)
    moves = again["lower.weight"] != saved[1][1]["lower.weight"]
    expect(moves, "after loading, training changes no weight", "which tensors does the optimizer hold?")
    expect(again == weights_after(4), "2 epochs and 2 more have not led to the weights of 4 in a row")


@check("weights of DDP, and of the network itself, are ready for inference", "does each file have the prefix, or none?")
def inference(work: ModuleType) -> object:
    seen = []
    for model in (make_network(seed=0), wrapped(make_network(seed=0))):
        torch.save(model.state_dict(), PATH)
        loaded = work.load_for_inference(PATH, make_network(seed=1))
        training = [name or "the network" for name, layer in loaded.named_modules() if layer.training]
        seen.append((weights(loaded), training))
    return seen


@inference.judge
def _(seen: Any) -> None:
    for loaded, training in seen:
        expect_same(loaded, weights(make_network(seed=0)))
        hint = "in which mode are dropout and batch normalisation?"
        expect(not training, f"in training mode: {', '.join(training)}", hint)


OTHERS = {  # what a file has instead of outer.module.bias, of shape (2,)
    "a weight less": {},
    "a weight too many": {"outer.module.bias": (2,), "more.bias": (2,)},
    "a weight of another name": {"more.bias": (2,)},
    "a weight of another shape": {"outer.module.bias": (1,)},
}


@check("a file with other weights is refused", "who compares the file's names with the network's, both ways?")
def refuses(work: ModuleType) -> object:
    right = make_network(seed=0).state_dict()
    torch.save(right, PATH)
    work.load_for_inference(PATH, make_network(seed=1))
    del right["outer.module.bias"]
    refused = []
    for what, others in OTHERS.items():
        zeros = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in others.items()}
        torch.save({**right, **zeros}, PATH)
        try:
            work.load_for_inference(PATH, make_network(seed=1))
        except Exception:  # noqa: BLE001 - however it refuses
            refused.append(what)
    return refused


@refuses.judge
def _(refused: Any) -> None:
    for what in OTHERS:
        hint = "does what you copy with compare the shapes?" if "shape" in what else ""
        expect(what in refused, f"a file with {what} was loaded", hint)


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
    try:
        work.load_checkpoint(PATH, again, optimizer, schedule)
        return {"loaded": (weights(again), weights(work.load_for_inference(Path("weights.pt"), make_network(seed=1))))}
    except RuntimeError as error:
        if "CUDA" in str(error):
            return {"error": str(error)}
        raise


@from_gpu.judge
def _(seen: Any) -> None:
    expect("error" not in seen, "torch.load tried to put the tensors on the GPU that they were saved from")
    checkpoint, inference = seen["loaded"]
    expect_same(checkpoint, weights_after(2))
    expect_same(inference, weights_after(2))


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
    with contextlib.suppress(Exception):
        work.load_for_inference(PATH, make_network(seed=1))
    return Path("trapped").exists()


@no_code.judge
def _(trapped: Any) -> None:
    expect(trapped is False, "a file made a folder on this machine when it was read")
