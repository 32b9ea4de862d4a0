"""Checks of to_lightning."""

import logging
import math
import warnings
from types import ModuleType, SimpleNamespace
from typing import Any

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


def validated(work: ModuleType, testing: TensorDataset, devices: int, module: Any = None) -> float | None:
    """The accuracy that was logged; None if there is none."""
    trainer = work.make_trainer(1, devices)
    module = module or work.Classifier(make_network(), 3)
    trainer.validate(module, work.Data(examples(8), testing, 4), verbose=False)
    found = trainer.callback_metrics.get("test_accuracy")
    return None if found is None else found.item()


def expect_accuracy(found: Any, wanted: float, seen: str) -> None:
    expect(found is not None, 'nothing was logged as "test_accuracy"')
    expect(abs(found - wanted) < 1e-6, f"{seen} was logged as {found:.4f}")


def fitted(work: ModuleType, devices: int) -> tuple[list[nn.Parameter], float, list[torch.Tensor]]:
    """The weights after two epochs in batches of 4, the rate, and the images of this process's batches."""
    data, network, batches = examples(12), make_network(), []
    network.register_forward_hook(lambda layer, inputs, output: batches.append(inputs[0]) if layer.training else None)
    work.make_trainer(2, devices).fit(work.Classifier(network, 3), work.Data(data, data, 4))
    return list(network.parameters()), work.LEARNING_RATE, batches


def away_from_loop(weights: Any, rate: float, batches: list[Any]) -> float:
    """The largest difference from the weights of a written-out loop on one device, with the same batches of images."""
    wanted, (images, labels) = make_network(), examples(12).tensors
    optimizer = torch.optim.SGD(wanted.parameters(), lr=rate, momentum=0.9)
    for step, batch in enumerate(batches):
        chosen = [images.tolist().index(image) for image in batch]
        optimizer.param_groups[0]["lr"] = rate * (1 + math.cos(math.pi * step / len(batches))) / 2
        optimizer.zero_grad()
        F.cross_entropy(wanted(images[chosen]), labels[chosen]).backward()
        optimizer.step()
    return largest_difference(weights, wanted.parameters())


@check("the Trainer trains as the loop written out", "what does training_step return, and what is then done with it?")
def same_training(work: ModuleType) -> object:
    return fitted(work, devices=1)


@same_training.judge
def _(seen: Any) -> None:
    weights, rate, batches = seen
    expect(
        [len(batch) for batch in batches] == [4] * 6, f"2 epochs of 12 examples, 4 to a batch, had {len(batches)} steps"
    )
    difference = away_from_loop(weights, rate, batches)
    expect(difference < 1e-10, f"a weight is {difference:.1e} from where the loop takes it")


@check("two devices train as one", "DDP averages the gradients of the devices: what of?", ranks=2)
def two_devices(work: ModuleType) -> object:
    return fitted(work, devices=2)


@two_devices.judge
def _(*ranks: Any) -> None:
    batches = [sum(shares, []) for shares in zip(*(batches for _, _, batches in ranks), strict=True)]
    told = f"2 epochs of 12 examples, 4 to a batch, came to 2 devices as {[len(batch) for batch in batches]}"
    expect([len(batch) for batch in batches] == [4] * 6, told)
    for weights, rate, _ in ranks:
        difference = away_from_loop(weights, rate, batches)
        expect(difference < 1e-10, f"a weight is {difference:.1e} from where one device takes it")


@check("the rate falls with every step", "how often did it fall, and how often should it?")
def schedule(work: ModuleType) -> object:
    rates, data = [], examples(12)
    module = work.Classifier(make_network(), 3)
    module.on_train_batch_start = lambda *_: rates.append(module.optimizers().param_groups[0]["lr"])
    work.make_trainer(1, 1).fit(module, work.Data(data, data, 4))
    return rates


@schedule.judge
def _(rates: Any) -> None:
    expect(len(set(rates)) == 3, f"in the 3 steps of an epoch the rate was {rates}")


@check("the accuracy is that of all examples", "classes and batches differ in size: what is averaged over what?")
def accuracy(work: ModuleType) -> object:
    return validated(work, answers_first(right=5, count=9), devices=1)


@accuracy.judge
def _(found: Any) -> None:
    expect_accuracy(found, 5 / 9, "5 of 9 are right, and the accuracy")


@check("each validation counts for itself", "what does a metric still hold when the next epoch begins?")
def counted_anew(work: ModuleType) -> object:
    module = work.Classifier(make_network(), 3)
    validated(work, answers_first(right=8, count=8), devices=1, module=module)
    return validated(work, answers_first(right=5, count=9), devices=1, module=module)


@counted_anew.judge
def _(found: Any) -> None:
    expect_accuracy(found, 5 / 9, "first 8 of 8 are right, then 5 of 9, and the second accuracy")


@check("two devices share a batch of the size that was asked for", "as in the activity ddp", ranks=2)
def global_batch(work: ModuleType) -> object:
    sizes = []
    module = work.Classifier(make_network(), 3)
    module.on_train_batch_start = lambda batch, index: sizes.append(len(batch[1]))
    work.make_trainer(1, 2).fit(module, work.Data(examples(10), examples(4), 4))
    return sizes


@global_batch.judge
def _(*ranks: Any) -> None:
    for sizes in ranks:
        expect(sizes == [2, 2, 1], f"of 10 examples in batches of 4, one of two devices got batches of {sizes}")


def on_two_nodes(work: ModuleType, count: int) -> list[Any]:
    """The Data object of each of four processes, on two nodes with two devices each, for `count` examples."""
    data, found = TensorDataset(torch.arange(count)), []
    for rank in range(4):
        one = work.Data(data, data, 4)
        one.trainer = SimpleNamespace(global_rank=rank, local_rank=rank % 2, node_rank=rank // 2, world_size=4)
        found.append(one)
    return found


@check(
    "all devices together train on all examples, in a new order in each epoch",
    "whose share is it? who calls set_epoch?",
)
def all_shares(work: ModuleType) -> object:
    loaders, epochs = [node.train_dataloader() for node in on_two_nodes(work, 9)], []
    for epoch in range(2):
        for loader in loaders:
            loader.sampler.set_epoch(epoch)
        epochs.append([number for loader in loaders for (batch,) in loader for number in batch.tolist()])
    return epochs


@all_shares.judge
def _(epochs: Any) -> None:
    expect(set(epochs[0]) == set(range(9)), f"of examples 0 to 8 four devices got {sorted(epochs[0])}")
    expect(epochs[0] != epochs[1], f"two epochs had the same order: {epochs[0]}")


@check("two devices see each test example once", "7 examples for 2 devices: what are the shares?", ranks=2)
def uneven_shares(work: ModuleType) -> object:
    return validated(work, answers_first(right=1, count=7), devices=2)


@uneven_shares.judge
def _(*ranks: Any) -> None:
    for found in ranks:
        expect_accuracy(found, 1 / 7, "1 of 7 is right, and the accuracy")


@check("so it is with devices on two nodes", "which of the devices' numbers are there twice?")
def test_shares(work: ModuleType) -> object:
    loaders = [node.val_dataloader() for node in on_two_nodes(work, 9)]
    return [number for loader in loaders for (batch,) in loader for number in batch.tolist()]


@test_shares.judge
def _(numbers: Any) -> None:
    found = sorted(numbers)
    expect(found == list(range(9)), f"of test examples 0 to 8 four devices saw {found}")
