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

from exercises.checking import check, expect
from exercises.ranks import gathered

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


def validated(work: ModuleType, testing: TensorDataset, devices: int, module: Any = None) -> float:
    trainer = work.make_trainer(1, devices)
    module = module or work.Classifier(make_network(), 3)
    trainer.validate(module, work.Data(examples(8), testing, 4), verbose=False)
    expect("test_accuracy" in trainer.callback_metrics, 'nothing was logged as "test_accuracy"')
    return trainer.callback_metrics["test_accuracy"].item()


def fitted(work: ModuleType, data: TensorDataset, devices: int) -> tuple[nn.Module, list[torch.Tensor]]:
    """The network after two epochs in batches of 4, and the images of this process's batches."""
    network, batches = make_network(), []
    network.register_forward_hook(lambda layer, inputs, output: batches.append(inputs[0]) if layer.training else None)
    work.make_trainer(2, devices).fit(work.Classifier(network, 3), work.Data(data, data, 4))
    return network, batches


def away_from_loop(work: ModuleType, network: nn.Module, data: TensorDataset, batches: list[torch.Tensor]) -> float:
    """The largest difference from the weights of a written-out loop on one device, with the same batches."""
    wanted, (images, labels) = make_network(), data.tensors
    optimizer = torch.optim.SGD(wanted.parameters(), lr=work.LEARNING_RATE, momentum=0.9)
    for step, batch in enumerate(batches):
        chosen = [int((images == image).all(dim=1).nonzero()) for image in batch]
        optimizer.param_groups[0]["lr"] = work.LEARNING_RATE * (1 + math.cos(math.pi * step / len(batches))) / 2
        optimizer.zero_grad()
        F.cross_entropy(wanted(images[chosen]), labels[chosen]).backward()
        optimizer.step()
    pairs = zip(network.parameters(), wanted.parameters(), strict=True)
    return max((one - other).abs().max().item() for one, other in pairs)


@check("the Trainer trains as the loop written out", "what does training_step return, and what is then done with it?")
def same_training(work: ModuleType) -> None:
    data = examples(12)
    network, batches = fitted(work, data, devices=1)
    expect([len(one) for one in batches] == [4] * 6, f"2 epochs of 12 examples, 4 to a batch, had {len(batches)} steps")
    difference = away_from_loop(work, network, data, batches)
    expect(difference < 1e-10, f"a weight is {difference:.1e} from where the loop takes it")


@check("two devices train as one", "DDP averages the gradients of the devices: what of?", ranks=2)
def two_devices(work: ModuleType) -> None:
    data = examples(12)
    network, mine = fitted(work, data, devices=2)
    everyone = gathered(mine)
    batches = [torch.cat(shares) for shares in zip(*everyone, strict=True)]
    told = f"2 epochs of 12 examples, 4 to a batch, came to 2 devices as {[len(one) for one in batches]}"
    expect([len(one) for one in batches] == [4] * 6, told)
    difference = away_from_loop(work, network, data, batches)
    expect(difference < 1e-10, f"a weight is {difference:.1e} from where one device takes it")


@check("the rate falls with every step", "how often did it fall, and how often should it?")
def schedule(work: ModuleType) -> None:
    rates, data = [], examples(12)
    module = work.Classifier(make_network(), 3)
    module.on_train_batch_start = lambda *_: rates.append(module.optimizers().param_groups[0]["lr"])
    work.make_trainer(1, 1).fit(module, work.Data(data, data, 4))
    expect(len(set(rates)) == 3, f"in the 3 steps of an epoch the rate was {rates}")


@check("the accuracy is that of all examples", "classes and batches differ in size: what is averaged over what?")
def accuracy(work: ModuleType) -> None:
    found = validated(work, answers_first(right=5, count=9), devices=1)
    expect(abs(found - 5 / 9) < 1e-6, f"5 of 9 are right, and the accuracy was logged as {found:.4f}")


@check("each validation counts for itself", "what does a metric still hold when the next epoch begins?")
def counted_anew(work: ModuleType) -> None:
    module = work.Classifier(make_network(), 3)
    validated(work, answers_first(right=8, count=8), devices=1, module=module)
    found = validated(work, answers_first(right=5, count=9), devices=1, module=module)
    told = f"first 8 of 8 are right, then 5 of 9, and the second accuracy was logged as {found:.4f}"
    expect(abs(found - 5 / 9) < 1e-6, told)


@check("two devices share a batch of the size that was asked for", "as in the activity ddp", ranks=2)
def global_batch(work: ModuleType) -> None:
    sizes = []
    module = work.Classifier(make_network(), 3)
    module.on_train_batch_start = lambda batch, index: sizes.append(len(batch[1]))
    work.make_trainer(1, 2).fit(module, work.Data(examples(10), examples(4), 4))
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
def all_shares(work: ModuleType) -> None:
    loaders, epochs = [one.train_dataloader() for one in on_two_nodes(work, 9)], []
    for epoch in range(2):
        for loader in loaders:
            loader.sampler.set_epoch(epoch)
        epochs.append([number for loader in loaders for (batch,) in loader for number in batch.tolist()])
    expect(set(epochs[0]) == set(range(9)), f"of examples 0 to 8 four devices got {sorted(epochs[0])}")
    expect(epochs[0] != epochs[1], f"two epochs had the same order: {epochs[0]}")


@check("two devices see each test example once", "7 examples for 2 devices: what are the shares?", ranks=2)
def uneven_shares(work: ModuleType) -> None:
    found = validated(work, answers_first(right=1, count=7), devices=2)
    expect(abs(found - 1 / 7) < 1e-6, f"1 of 7 is right, and the accuracy was logged as {found:.4f}")


@check("so it is with devices on two nodes", "which of the devices' numbers are there twice?")
def test_shares(work: ModuleType) -> None:
    loaders = [one.val_dataloader() for one in on_two_nodes(work, 9)]
    found = sorted(number for loader in loaders for (batch,) in loader for number in batch.tolist())
    expect(found == list(range(9)), f"of test examples 0 to 8 four devices saw {found}")
