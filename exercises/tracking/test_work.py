from collections import defaultdict
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from exercises.conftest import check_near, make_batch, make_linear, train_alone

CPU = torch.device("cpu")


class Recorder:
    """A logger that keeps what it is told. `curves`: of each metric its steps, and its values."""

    def __init__(self):
        self.hyperparameters, self.curves, self.ends = [], defaultdict(lambda: ([], [])), []

    def log_hyperparams(self, params):
        self.hyperparameters.append(dict(params))

    def log_metrics(self, metrics, step):
        for name, value in metrics.items():
            steps, values = self.curves[name]
            steps.append(step)
            values.append(float(value))

    def finalize(self, status):
        self.ends.append(status)


def join():
    return dist.get_rank(), Recorder() if dist.get_rank() == 0 else None


def test_begin(work):
    """rank 0 alone makes the logger, and logs the hyperparameters once"""
    settings, logger = {"seed": 7, "learning_rate": 0.1}, Recorder()
    assert work.begin(lambda: logger, 0, 4, 10, settings) == logger, "what does begin() return on rank 0?"
    wanted = {**settings, "world_size": 4, "global_batch_size": 40, "torch_version": str(torch.__version__)}
    hint = "4 processes, 10 examples each: which numbers does somebody need who wants to run it again?"
    assert logger.hyperparameters == [wanted], hint
    assert settings == {"seed": 7, "learning_rate": 0.1}, "the caller's settings: which dictionary do you write into?"
    make_logger = mock.Mock()
    found = work.begin(make_logger, 1, 4, 10, settings)
    assert make_logger.call_count == 0, "loggers that rank 1 makes: which processes run the line that makes the logger?"
    assert found is None, f"begin() returns {found} on rank 1: how does the caller find out whether it is to log?"


def test_global_loss(work, ranks):
    """the loss is the mean over the examples of all processes, at the steps since the training began"""
    # Examples of each rank in each step. Rank 1 has none in the last entry.
    counts = (4, 4, 3), (4, 4, 4), (1, 7, 0), (5, 2, 2), (0, 0, 6), (3, 1, 0), (2, 0, 2)
    losses = [[torch.rand(count) + 5 * rank + step for rank, count in enumerate(counts[step])] for step in range(7)]

    def check():
        rank, logger = join()
        log = work.LossLog(logger, 3, 10, CPU)
        for step, shares in enumerate(losses, start=11):
            log.add(shares[rank].requires_grad_(), 0.5 / step)
            if step in (12, 17):
                log.flush()  # right after an entry it does nothing
        log.flush()
        dist.barrier()
        assert not log.totals.requires_grad, "the totals hold on to each step's graph: what keeps it in memory?"
        if logger:
            steps, means = logger.curves["train/loss"]
            hint = "steps 11 to 17, every 3, with flush() after 12, and twice after 17: when is there an entry?"
            assert steps == [12, 15, 17], hint
            wanted = [torch.cat(sum(part, [])).mean().item() for part in (losses[:2], losses[2:5], losses[5:])]
            hint = "means of 3 processes, every 3 steps: how many examples has each, and what do the totals hold after?"
            assert means == pytest.approx(wanted), hint
            rates = pytest.approx([0.5 / step for step in steps])
            assert logger.curves["train/learning_rate"] == (steps, rates), "the rates: of which step of an entry?"

    ranks(check, 3)


def test_seldom(work, monkeypatch):
    """nothing is fetched or reduced between two entries"""
    for name in ("all_reduce", "reduce", "all_gather", "gather", "all_gather_object", "gather_object", "barrier"):
        hint = f"dist.{name} in a step without an entry: when must the numbers of the other processes be known?"
        monkeypatch.setattr(dist, name, mock.Mock(side_effect=AssertionError(hint)))
    device = torch.device("meta")  # its tensors have no numbers that could be fetched
    log = work.LossLog(Recorder(), 5, 0, device)
    for _ in range(4):
        log.add(torch.rand(4, device=device), 0.1)


def test_epoch(work, ranks):
    """an epoch trains as without a log, and logs the rate that each step has used"""
    batches = [make_batch(4), make_batch(4, seed=1), make_batch(3, seed=2)]

    def check():
        (_, logger), model, other = join(), make_linear(), make_linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.8)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        work.train_epoch(model, batches, optimizer, schedule, work.LossLog(logger, 1, 0, CPU))
        found, wanted = logger.curves["train/learning_rate"], [0.8, 0.4, 0.2]
        assert found == ([1, 2, 3], pytest.approx(wanted)), "steps and their rates: when is it this step's?"
        for batch, rate in zip(batches, wanted):
            train_alone(other, torch.optim.SGD(other.parameters(), lr=rate), [batch])
        check_near("a weight after 3 steps", model.parameters(), other.parameters(), "which steps, in which order?")

    ranks(check, 1)


def test_tested(work, ranks):
    """test loss and accuracy are those over the examples of all processes"""

    def check():
        rank, logger = join()
        logits, labels = make_batch(9, 3)
        mine = (slice(0, 6), slice(6, 9), slice(9, 9))[rank]
        work.log_test(logger, logits[mine], labels[mine], 17)
        dist.barrier()
        if logger:
            found = sorted((name, steps) for name, (steps, _) in logger.curves.items())
            assert found == [("test/accuracy", [17]), ("test/loss", [17])], "names and steps, after 17 training steps"
            accuracy = (logits.argmax(dim=1) == labels).double().mean().item()
            (found,), (loss,) = logger.curves["test/accuracy"][1], logger.curves["test/loss"][1]
            hint = "loss and accuracy of shares of 6, 3 and 0 examples: which sums, divided by what?"
            assert [loss, found] == pytest.approx([F.cross_entropy(logits, labels).item(), accuracy]), hint

    ranks(check, 3)


def test_in_order(work, ranks):
    """rank 0 has the guesses in the order of the data set"""

    def collect():
        indices = torch.tensor(([0, 5, 2], [1, 3, 4, 0], [6])[join()[0]])  # example 0 is there twice
        return work.collect(indices, indices * 10, 7)

    assert ranks(collect, 3) == [[0, 10, 20, 30, 40, 50, 60], None, None], "whose guess is the guess for example 1?"


@pytest.mark.parametrize("error", [None, ValueError("bad"), KeyboardInterrupt()], ids=["none", "error", "Ctrl-C"])
def test_ended(work, error):
    """the logger gets the right status at every end of the training"""
    for logger in (Recorder(), None):
        raised = None
        try:
            work.tracked(logger, mock.Mock(side_effect=error))
        except (ValueError, KeyboardInterrupt) as one:
            raised = one
        assert raised == error, "the error that the caller gets: which line could keep it?"
        if logger:
            hint = "the calls of finalize: which lines run when training() raises an error, and when at Ctrl-C?"
            assert logger.ends == ["failed" if error else "success"], hint
