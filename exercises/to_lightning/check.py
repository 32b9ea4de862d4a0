"""Checks of to_lightning."""

import logging
import math
import warnings
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from exercises.checking import check, expect, largest_difference

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def examples(count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    return TensorDataset(images, torch.randint(3, (count,), generator=generator))


def make_network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(4, 3).double()


def answers_first(right: int, count: int) -> TensorDataset:
    """Examples of which the network of `make_network` classifies the first `right` correctly, and no others."""
    images = examples(count).tensors[0]
    answers = make_network()(images).argmax(dim=1)
    return TensorDataset(images, torch.where(torch.arange(count) < right, answers, (answers + 1) % 3))


def validated(work: ModuleType, testing: TensorDataset, devices: int) -> torch.Tensor | None:
    """The accuracy that was logged; None if there is none."""
    trainer = work.make_trainer(1, devices)
    trainer.validate(work.Classifier(make_network(), 3), work.Data(examples(8), testing, 4), verbose=False)
    return trainer.callback_metrics.get("test_accuracy")


def expect_accuracy(found: Any, wanted: float, seen: str) -> None:
    when = "on which devices do you log, at which moment, and under which name?"
    expect(found is not None, 'after the validation there is no "test_accuracy"', hint=when)
    expect(abs(found - wanted) < 1e-6, f"{seen}: yours {found:.4f}, wanted {wanted:.4f}")


def fitted(work: ModuleType, devices: int) -> dict[str, Any]:
    """Two epochs with 10 examples, 4 to a batch: the weights after them, and the rate and the images of each step."""
    network, rates, batches = make_network(), [], []
    module = work.Classifier(network, 3)

    def record(layer: nn.Module, inputs: tuple[torch.Tensor], _: torch.Tensor) -> None:
        if layer.training:
            rates.append(module.optimizers().param_groups[0]["lr"])
            batches.append(inputs[0])

    network.register_forward_hook(record)
    work.make_trainer(2, devices).fit(module, work.Data(examples(10), examples(5), 4))
    weights = list(network.parameters())
    return {"weights": weights, "rates": rates, "batches": batches, "first": work.LEARNING_RATE}


def expect_steps(seen: dict[str, Any], sizes: list[int]) -> None:
    """Expects batches of these sizes in each epoch, and the rates of a cosine."""
    found, rates, wanted = [len(batch) for batch in seen["batches"]], seen["rates"], sizes * 2
    told = f"2 epochs of 10 examples, 4 to a batch: yours batches of {found}, wanted {wanted}"
    expect(found == wanted, told, hint="which examples are dealt out, and how many of them to each device's batch?")
    cosine = [seen["first"] * (1 + math.cos(math.pi * step / len(rates))) / 2 for step in range(len(rates))]
    yours, right = (", ".join(f"{rate:.4f}" for rate in some) for some in (rates, cosine))
    away = max(abs(rate - other) for rate, other in zip(rates, cosine, strict=True))
    how = "how often is the schedule stepped, over how many steps does the rate fall, and to what?"
    expect(away < 1e-8, f"the rates of the steps: yours {yours}, wanted {right}", hint=how)


def away_from_loop(weights: Any, rates: list[float], batches: list[Any]) -> float:
    """The largest difference from the weights of a written-out loop on one device, with these batches and rates."""
    wanted, (images, labels) = make_network(), examples(10).tensors
    optimizer = torch.optim.SGD(wanted.parameters(), momentum=0.9)
    for rate, batch in zip(rates, batches, strict=True):
        chosen = [images.tolist().index(image) for image in batch]
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        F.cross_entropy(wanted(images[chosen]), labels[chosen]).backward()
        optimizer.step()
    return largest_difference(weights, wanted.parameters())


@check("the Trainer trains as the loop written out", "what does training_step return, and what is then done with it?")
def same_training(work: ModuleType) -> object:
    return fitted(work, devices=1)


@same_training.judge
def _(seen: Any) -> None:
    expect_steps(seen, [4, 4, 2])
    difference = away_from_loop(seen["weights"], seen["rates"], seen["batches"])
    expect(difference < 1e-10, f"a weight is {difference:.1e} from where the loop takes it")
    epochs = [sum(seen["batches"][epoch : epoch + 3], []) for epoch in (0, 3)]
    expect(epochs[0] != epochs[1], "both epochs had the same order", hint="is it shuffled? who calls set_epoch?")


@check(
    "the accuracy is that of all examples",
    "what counts as a right answer, and what is averaged over what? classes and batches differ in size",
)
def accuracy(work: ModuleType) -> object:
    return validated(work, answers_first(right=5, count=9), devices=1)


@accuracy.judge
def _(found: Any) -> None:
    expect_accuracy(found, 5 / 9, "the accuracy if 5 of 9 are right")


@check("the accuracy is that of this validation alone", "what does the metric still hold when a validation begins?")
def counted_anew(work: ModuleType) -> object:
    trainer, module, all_right = work.make_trainer(1, 1), work.Classifier(make_network(), 3), answers_first(8, 8)
    trainer.validate(module, work.Data(all_right, all_right, 4), verbose=False)
    with mock.patch.object(work, "LEARNING_RATE", 0.0):  # the network's answers stay as they are
        trainer.fit(module, work.Data(all_right, answers_first(5, 9), 4))
    return trainer.callback_metrics.get("test_accuracy")


@counted_anew.judge
def _(found: Any) -> None:
    expect_accuracy(found, 5 / 9, "first 8 of 8 are right, in training too, then 5 of 9; the second accuracy")


@check("two devices see each test example once", "what are the shares of 7 examples? which devices log?", ranks=2)
def uneven_shares(work: ModuleType) -> object:
    return validated(work, answers_first(right=1, count=7), devices=2)


@uneven_shares.judge
def _(*ranks: Any) -> None:
    told = f"the two devices logged different accuracies: {ranks}"
    expect(ranks[0] == ranks[1], told, hint="does the number count the other device's answers, too?")
    expect_accuracy(ranks[0], 1 / 7, "the accuracy if 1 of 7 is right")


def on_two_nodes(work: ModuleType, loader: str) -> list[int]:
    """The examples 0 to 8, as four processes get them from a method of Data, on two nodes with two devices each."""
    data, found = TensorDataset(torch.arange(9)), []
    for rank in range(4):
        one = work.Data(data, data, 4)
        one.trainer = SimpleNamespace(global_rank=rank, local_rank=rank % 2, node_rank=rank // 2, world_size=4)
        found += [number for (batch,) in getattr(one, loader)() for number in batch.tolist()]
    return sorted(found)


@check(
    "on two nodes, too, each test example is seen once", "what makes a device's share different from all the others'?"
)
def test_shares(work: ModuleType) -> object:
    return on_two_nodes(work, "val_dataloader")


@test_shares.judge
def _(numbers: Any) -> None:
    expect(numbers == list(range(9)), f"test examples on four devices: yours {numbers}, wanted 0 to 8, each once")


@check("two devices train as one", "DDP averages the gradients of the devices: what of?", ranks=2)
def two_devices(work: ModuleType) -> object:
    return fitted(work, devices=2)


@two_devices.judge
def _(*ranks: Any) -> None:
    for seen in ranks:
        expect_steps(seen, [2, 2, 1])
    batches = [sum(shares, []) for shares in zip(*(seen["batches"] for seen in ranks), strict=True)]
    for seen in ranks:
        difference = away_from_loop(seen["weights"], seen["rates"], batches)
        expect(difference < 1e-10, f"a weight is {difference:.1e} from where one device takes it")


@check("all devices together train on all examples", "which part of which order does each device take?")
def all_shares(work: ModuleType) -> object:
    return on_two_nodes(work, "train_dataloader")


@all_shares.judge
def _(numbers: Any) -> None:
    expect(set(numbers) == set(range(9)), f"examples on four devices: yours {numbers}, wanted 0 to 8")
