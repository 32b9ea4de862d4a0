"""Checks of tracking."""

from unittest import mock

import pytest
import torch
import torch._dynamo  # the first optimizer of each process would import it
import torch.distributed as dist
import torch.nn.functional as F
from lightning.pytorch.loggers import Logger
from torch import nn

CPU = torch.device("cpu")
# Examples of each rank in each step: the shares are unequal, and one is empty.
COUNTS = ((4, 4, 3), (4, 4, 4), (1, 7, 0), (5, 2, 2), (0, 0, 6), (3, 1, 0), (2, 2, 2))


class Recorder(Logger):
    """A logger that keeps what it is told."""

    name, version = "recorder", 0

    def __init__(self):
        super().__init__()
        self.hyperparameters, self.rows, self.ends = [], [], []

    def log_hyperparams(self, params, *_, **__):
        self.hyperparameters.append(dict(params))

    def log_metrics(self, metrics, step=None):
        self.rows += [(step, name, float(value)) for name, value in metrics.items()]

    def finalize(self, status):
        self.ends.append(status)

    def values(self, name):
        """Step -> value, in order."""
        return {step: value for step, found, value in self.rows if found == name}


def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def group():
    dist.init_process_group("gloo")
    return dist.get_rank()


def test_begin(work):
    """rank 0 alone makes the logger, and logs the hyperparameters once"""
    settings, logger = {"seed": 7, "learning_rate": 0.1}, Recorder()
    assert work.begin(lambda: logger, 0, 4, 16, settings) is logger, "what does begin() return on rank 0?"
    wanted = {**settings, "world_size": 4, "global_batch_size": 64, "torch_version": str(torch.__version__)}
    hint = "4 processes, 16 examples each: which numbers does somebody need who wants to run it again?"
    assert logger.hyperparameters == [wanted], hint
    assert settings == {"seed": 7, "learning_rate": 0.1}, "the caller's settings: which dictionary do you write into?"
    assert work.begin(pytest.fail, 1, 4, 16, settings) is None, "what does begin() return on the other ranks?"


# Every how many steps, the steps before, the steps that are added, and the steps of the entries.
AXES = ((4, 0, 9, [4, 8, 9]), (4, 10, 9, [12, 16, 19]), (5, 23, 3, [25, 26]), (10, 4, 3, [7]), (5, 40, 0, []))


def test_step_axis(work, ranks):
    """the steps are counted from the beginning of the training"""

    def entries():
        alone()
        for every, first, adds, wanted in AXES:
            logger = Recorder()
            log = work.LossLog(logger, every, first, CPU)
            for number in range(adds):
                log.add(torch.tensor([1.0 + number]), 0.5)
            log.flush()
            log.flush()
            hint = f"steps {first + 1} to {first + adds}, every {every}, then flush() twice: when is there an entry?"
            assert [step for step, name, _ in logger.rows if name == "train/loss"] == wanted, hint

    ranks(entries, 1)


def losses_of(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.rand(COUNTS[step][rank], generator=generator, dtype=torch.float64) * (1 + 5 * rank + step)


def test_global_loss(work, ranks):
    """the loss is the mean over the examples of all processes"""

    def log_losses():
        rank = group()
        logger = Recorder() if rank == 0 else None
        log = work.LossLog(logger, 3, 0, CPU)
        for step in range(len(COUNTS)):
            log.add(losses_of(step, rank).requires_grad_(), 0.5 / (1 + step))
        log.flush()
        assert not log.totals.requires_grad, "the totals hold on to each step's graph: what keeps it in memory?"
        return logger and (logger.values("train/loss"), logger.values("train/learning_rate"))

    losses, rates = ranks(log_losses, 3)[0]
    wanted = {}
    for end, steps in {3: range(3), 6: range(3, 6), 7: range(6, 7)}.items():
        wanted[end] = torch.cat([losses_of(step, rank) for step in steps for rank in range(3)]).mean().item()
    hint = (
        "means of 3 processes, every 3 steps: how many examples are there in each, and what do the totals hold after?"
    )
    assert losses == pytest.approx(wanted), hint
    assert rates == pytest.approx({end: 0.5 / end for end in wanted}), "the rates of the last step of each entry"


def test_seldom(work, ranks):
    """nothing is fetched or reduced between two entries"""

    def add():
        alone()
        with mock.patch("torch.distributed.all_reduce", wraps=dist.all_reduce) as reduce:
            log, reductions = work.LossLog(Recorder(), 5, 0, CPU), []
            for _ in range(6):
                log.add(torch.rand(4), 0.1)
                reductions.append(reduce.call_count)
        hint = "reductions after each of 6 steps, every 5: when must the numbers of the other processes be known?"
        assert reductions == [0, 0, 0, 0, 1, 1], hint
        device = torch.device("meta")  # its tensors have no numbers that could be fetched
        work.LossLog(Recorder(), 1000, 0, device).add(torch.rand(4, device=device), 0.1)

    ranks(add, 1)


def test_epoch(work, ranks):
    """an epoch trains as without a log, and logs the rate that each step has used"""

    def train():
        alone()
        torch.manual_seed(0)
        model, logger = nn.Linear(2, 3), Recorder()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.8)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        batches = [(torch.randn(count, 2), torch.arange(count) % 3) for count in (4, 4, 3)]
        copy = nn.Linear(2, 3)
        copy.load_state_dict(model.state_dict())
        work.train_epoch(model, batches, optimizer, schedule, work.LossLog(logger, 1, 0, CPU))
        for (images, labels), rate in zip(batches, (0.8, 0.4, 0.2)):
            gradients = torch.autograd.grad(F.cross_entropy(copy(images), labels), list(copy.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(copy.parameters(), gradients):
                    parameter -= rate * gradient
        assert logger.values("train/learning_rate") == pytest.approx({1: 0.8, 2: 0.4, 3: 0.2}), (
            "when is it this step's?"
        )
        same = torch.allclose(model.weight, copy.weight, atol=1e-6)
        assert same, "the weights after 3 steps: which of the two steps comes first?"

    ranks(train, 1)


def test_tested(work, ranks):
    """test loss and accuracy are those over the examples of all processes"""
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(9, 3, generator=generator, dtype=torch.float64), torch.arange(9) % 3
    rows = (slice(0, 6), slice(6, 9), slice(9, 9))

    def log():
        rank = group()
        logger = Recorder() if rank == 0 else None
        work.log_test(logger, logits[rows[rank]], labels[rows[rank]], 17)
        return logger and logger.rows

    found = {name: (step, value) for step, name, value in ranks(log, 3)[0]}
    accuracy = (logits.argmax(dim=1) == labels).double().mean().item()
    wanted = {"test/loss": (17, F.cross_entropy(logits, labels).item()), "test/accuracy": (17, accuracy)}
    assert {name: step for name, (step, _) in found.items()} == dict.fromkeys(wanted, 17), "names, and their steps"
    hint = "shares of 6, 3 and 0 examples: which sums, divided by what?"
    assert [found[name][1] for name in wanted] == pytest.approx([value for _, value in wanted.values()]), hint


def test_in_order(work, ranks):
    """rank 0 has the guesses in the order of the data set"""
    shares = ([0, 5, 2], [1, 3, 4, 0], [6])  # example 0 is there twice

    def collect():
        indices = torch.tensor(shares[group()])
        return work.collect(indices, indices * 10, 7)

    assert ranks(collect, 3) == [[0, 10, 20, 30, 40, 50, 60], None, None], "whose guess is the guess for example 1?"


@pytest.mark.parametrize("error", [None, ValueError("bad"), KeyboardInterrupt()], ids=["none", "error", "Ctrl-C"])
def test_ended(work, error):
    """the logger gets the right status at every end of the training"""

    def training():
        if error:
            raise error

    for logger in (Recorder(), None):
        raised = None
        try:
            work.tracked(logger, training)
        except (ValueError, KeyboardInterrupt) as one:
            raised = one
        assert raised is error, "the error that the caller gets: which line could keep it?"
        if logger:
            hint = "the calls of finalize: which lines run when training() raises an error, and when at Ctrl-C?"
            assert logger.ends == ["failed" if error else "success"], hint
