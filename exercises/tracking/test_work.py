"""Checks of tracking."""

from unittest import mock

import pytest
import torch
import torch._dynamo  # the first optimizer of each process would import it
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

CPU = torch.device("cpu")
# Examples of each rank in each step: the shares are unequal, and one is empty.
COUNTS = ((4, 4, 3), (4, 4, 4), (1, 7, 0), (5, 2, 2), (0, 0, 6), (3, 1, 0), (2, 2, 2))


class Recorder:
    """A logger that keeps the metrics."""

    def __init__(self):
        self.rows = []

    def log_metrics(self, metrics, step=None):
        self.rows += [(step, name, float(value)) for name, value in metrics.items()]

    def values(self, name):
        """Steps and values, in order."""
        return [list(column) for column in zip(*((step, value) for step, found, value in self.rows if found == name))]


def group():
    """This process's rank, and its logger."""
    dist.init_process_group("gloo")
    return dist.get_rank(), Recorder() if dist.get_rank() == 0 else None


def test_begin(work):
    """rank 0 alone makes the logger, and logs the hyperparameters once"""
    settings, logger = {"seed": 7, "learning_rate": 0.1}, mock.Mock()
    assert work.begin(lambda: logger, 0, 4, 16, settings) is logger, "what does begin() return on rank 0?"
    wanted = {**settings, "world_size": 4, "global_batch_size": 64, "torch_version": str(torch.__version__)}
    hint = "4 processes, 16 examples each: which numbers does somebody need who wants to run it again?"
    assert logger.log_hyperparams.call_args_list == [mock.call(wanted)], hint
    assert settings == {"seed": 7, "learning_rate": 0.1}, "the caller's settings: which dictionary do you write into?"
    assert work.begin(pytest.fail, 1, 4, 16, settings) is None, "what does begin() return on the other ranks?"


def losses_of(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.rand(COUNTS[step][rank], generator=generator, dtype=torch.float64) * (1 + 5 * rank + step)


def test_global_loss(work, ranks):
    """the loss is the mean over the examples of all processes, and nothing is reduced between two entries"""

    def log_losses():
        rank, logger = group()
        log, reductions = work.LossLog(logger, 4, 10, CPU), []
        with mock.patch("torch.distributed.all_reduce", wraps=dist.all_reduce) as reduce:
            for step in range(len(COUNTS)):
                log.add(losses_of(step, rank).requires_grad_(), 0.5 / (1 + step))
                reductions.append(reduce.call_count)
        hint = (
            "reductions after each of steps 11 to 17, every 4: when must the numbers of the other processes be known?"
        )
        assert reductions == [0, 1, 1, 1, 1, 2, 2], hint
        log.flush()
        log.flush()
        assert not log.totals.requires_grad, "the totals hold on to each step's graph: what keeps it in memory?"
        return logger and (logger.values("train/loss"), logger.values("train/learning_rate"))

    (steps, losses), (_, rates) = ranks(log_losses, 3)[0]
    hint = "the steps of the entries, in steps 11 to 17, every 4, then flush() twice: when is there an entry?"
    assert steps == [12, 16, 17], hint
    parts = (range(2), range(2, 6), range(6, 7))
    wanted = [torch.cat([losses_of(step, rank) for step in part for rank in range(3)]).mean().item() for part in parts]
    hint = "means of 3 processes: how many examples are there in each, and what do the totals hold after an entry?"
    assert losses == pytest.approx(wanted), hint
    assert rates == pytest.approx([0.5 / 2, 0.5 / 6, 0.5 / 7]), "the rates of the last step of each entry"


def test_fetches_nothing(work):
    """a step fetches no number from the device"""
    device = torch.device("meta")  # its tensors have no numbers that could be fetched
    work.LossLog(None, 1000, 0, device).add(torch.rand(4, device=device), 0.1)


def test_epoch(work, ranks):
    """each batch makes a step of the optimizer, whose rate is logged, and one of the schedule"""

    def train():
        group()
        model, logger, used = nn.Linear(2, 3), Recorder(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.8)
        optimizer.register_step_pre_hook(lambda *_: used.append(optimizer.param_groups[0]["lr"]))
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        batches = [(torch.randn(4, 2), torch.arange(4) % 3)] * 3
        work.train_epoch(model, batches, optimizer, schedule, work.LossLog(logger, 1, 0, CPU))
        assert used == pytest.approx([0.8, 0.4, 0.2]), "rates of the optimizer's steps: which of both steps is first?"
        logged = logger.values("train/learning_rate")[1]
        assert logged == pytest.approx([0.8, 0.4, 0.2]), "the rates that are logged: when is it this step's?"

    ranks(train, 1)


def test_tested(work, ranks):
    """test loss and accuracy are those over the examples of all processes"""
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(9, 3, generator=generator, dtype=torch.float64), torch.arange(9) % 3
    rows = (slice(0, 6), slice(6, 9), slice(9, 9))

    def log():
        rank, logger = group()
        work.log_test(logger, logits[rows[rank]], labels[rows[rank]], 17)
        return logger and sorted(logger.rows)

    (*accuracy, right), (*loss, mean) = ranks(log, 3)[0]
    assert [accuracy, loss] == [[17, "test/accuracy"], [17, "test/loss"]], "the steps and names that are logged"
    wanted = [(logits.argmax(dim=1) == labels).double().mean().item(), F.cross_entropy(logits, labels).item()]
    hint = "accuracy and loss, shares of 6, 3 and 0 examples: which sums, divided by what?"
    assert [right, mean] == pytest.approx(wanted), hint


def test_in_order(work, ranks):
    """rank 0 has the guesses in the order of the data set"""
    shares = ([0, 5, 2], [1, 3, 4, 0], [6])  # example 0 is there twice

    def collect():
        indices = torch.tensor(shares[group()[0]])
        return work.collect(indices, indices * 10, 7)

    assert ranks(collect, 3) == [[0, 10, 20, 30, 40, 50, 60], None, None], "whose guess is the guess for example 1?"


def test_ended(work):
    """the logger gets the right status at every end of the training"""
    for error, wanted in ((None, "success"), (ValueError("bad"), "failed"), (KeyboardInterrupt(), "failed")):
        logger, raised, training = mock.Mock(), None, mock.Mock(side_effect=error)
        try:
            work.tracked(logger, training)
        except (ValueError, KeyboardInterrupt) as one:
            raised = one
        assert raised is error, f"{error!r} ends the training, the caller gets {raised!r}: which line could keep it?"
        hint = f"calls of finalize after {error!r}: which of your lines run then?"
        assert logger.finalize.call_args_list == [mock.call(wanted)], hint
    work.tracked(None, mock.Mock())  # a rank without a logger
