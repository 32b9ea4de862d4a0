from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback

from exercises.conftest import check_near, make_batch, make_linear, train_alone

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice


def examples(count, right=0):
    """Examples of which `make_linear` classifies the first `right` correctly, and no others."""
    images, _ = make_batch(count)
    answers = make_linear()(images).argmax(dim=1)
    return torch.utils.data.TensorDataset(images, torch.where(torch.arange(count) < right, answers, (answers + 1) % 3))


def test_same_training(work, ranks):
    """two devices train as the loop written out"""

    def fit():
        network, trainer, steps = make_linear(), work.make_trainer(2, 2), []

        def record(trainer, module, batch, _):
            steps.append((trainer.optimizers[0].param_groups[0]["lr"], *batch))

        trainer.callbacks.append(LambdaCallback(on_train_batch_start=record))
        trainer.fit(work.Classifier(network, 3), work.Data(examples(10), examples(5), 4))
        return list(network.parameters()), *zip(*steps)

    weights, (rates, *_), images, labels = zip(*ranks(fit, 2, seconds=30, group=False))
    hint = "batches in 2 epochs of 10 examples, 4 to a batch, two devices: how many are for each device?"
    assert [len(share) for share in images[0]] == [2, 2, 1, 2, 2, 1], hint
    hint = "the rates of the steps: how often is the schedule stepped, over how many steps does the rate fall?"
    assert [round(rate, 5) for rate in rates] == [0.05, 0.04665, 0.0375, 0.025, 0.0125, 0.00335], hint
    images, labels = ([torch.cat(shares) for shares in zip(*seen)] for seen in (images, labels))
    assert images[0].tolist() != images[3].tolist(), "both epochs begin alike: is it shuffled? who calls set_epoch?"
    network = make_linear()
    optimizer = torch.optim.SGD(network.parameters(), momentum=0.9)
    for rate, *batch in zip(rates, images, labels):
        optimizer.param_groups[0]["lr"] = rate
        train_alone(network, optimizer, [batch])
    hint = "what does training_step return, and what is done with it?"
    check_near("a weight after 2 epochs", sum(weights, []), [*network.parameters()] * 2, hint)


def test_accuracy(work, ranks):
    """the accuracy is that of all examples, and of this validation alone"""

    def validate():
        trainer, module = work.make_trainer(1, 2), work.Classifier(make_linear(), 3)
        for testing in (examples(8, 8), examples(9, 5)):
            trainer.validate(module, work.Data(examples(8), testing, 4), verbose=False)
        return round(float(trainer.callback_metrics.get("test_accuracy", "nan")), 4)

    hint = "two devices; 8 of 8 right, then 5 of 9 (nan: not logged): what is averaged over what, and starts anew when?"
    assert ranks(validate, 2, seconds=30, group=False) == [0.5556, 0.5556], hint


def test_two_nodes(work):
    """on two nodes, too, all examples are dealt out, and each test example once"""
    data, training, testing = torch.utils.data.TensorDataset(torch.arange(9)), set(), []
    for rank in range(4):
        share = work.Data(data, data, 4)
        share.trainer = SimpleNamespace(global_rank=rank, local_rank=rank % 2, node_rank=rank // 2, world_size=4)
        training.update(number for (batch,) in share.train_dataloader() for number in batch.tolist())
        testing += [number for (batch,) in share.val_dataloader() for number in batch.tolist()]
    hint = "training and test examples of four devices: which part of which order does each device take?"
    assert (sorted(training), sorted(testing)) == ([*range(9)], [*range(9)]), hint
