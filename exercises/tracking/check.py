"""Checks of tracking."""

import contextlib
import gc
import math
import os
import weakref
from itertools import pairwise
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from lightning.pytorch.loggers import Logger
from torch import nn
from torch.overrides import TorchFunctionMode

from exercises.checking import check, expect, largest_difference

RANKS = 3
CPU = torch.device("cpu")


class Recorder(Logger):
    """A logger that keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.hyperparameters: list[dict[str, Any]] = []
        self.rows: list[tuple[int | None, str, float]] = []
        self.ends: list[str] = []

    @property
    def name(self) -> str:
        return "recorder"

    @property
    def version(self) -> int:
        return 0

    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        self.hyperparameters.append(dict(params) if isinstance(params, dict) else dict(vars(params)))

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self.rows += [(step, name, float(value)) for name, value in metrics.items()]

    def finalize(self, status: str) -> None:
        self.ends.append(status)


def alone() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def group() -> int:
    """This process's rank; as on several nodes, where each process is the first one of its node, without torchrun."""
    dist.init_process_group("gloo")
    os.environ["LOCAL_RANK"] = "0"
    del os.environ["RANK"]
    return dist.get_rank()


def steps(rows: Any, name: str) -> list[int | None]:
    return [step for step, found, _ in rows if found == name]


def values(rows: Any, name: str) -> list[float]:
    return [value for _, found, value in rows if found == name]


def near(found: list[float], wanted: list[float]) -> bool:
    pairs = zip(found, wanted, strict=False)
    return len(found) == len(wanted) and all(abs(one - other) < 1e-6 * (1 + abs(other)) for one, other in pairs)


def expect_near(what: str, found: list[float], wanted: list[float], hint: str = "") -> None:
    yours, right = (", ".join(f"{value:g}" for value in numbers) or "none" for numbers in (found, wanted))
    expect(near(found, wanted), f"{what}: yours {yours}, wanted {right}", hint)


def spans(every: int, count: int, first: int = 0) -> list[range]:
    """The steps of each entry, counted from 0, if `count` are added after `first`, and then the log is flushed."""
    ends = sorted({*range(first // every * every + every, first + count, every), first + count})
    return [range(begin, end) for begin, end in pairwise([first, *ends])]


@check("rank 0 alone makes the logger", "which processes run the line that makes the logger?", ranks=RANKS, seconds=10)
def one_logger(work: ModuleType) -> object:
    rank, made = group(), []

    def make() -> Recorder:
        made.append(Recorder())
        return made[-1]

    found = work.begin(make, rank, RANKS, 8, {"seed": 0})
    return len(made), found is (made[0] if made else None)


@one_logger.judge
def _(*ranks: Any) -> None:
    makers = [rank for rank, (count, _) in enumerate(ranks) for _ in range(count)]
    expect(makers == [0], f"the ranks that make a logger: yours {makers}, wanted [0]")
    returned = all(right is True for _, right in ranks)
    hint = "what does the caller test, to find out whether it is to log?"
    expect(returned, "begin() must return the logger on rank 0, and None on the other ranks", hint)


# For `hyperparameters`: the number of processes, the examples of each, and the settings.
BEGINNINGS = (
    (4, 16, {"seed": 7, "learning_rate": 0.1}),
    (3, 10, {"seed": 1, "optimizer": "SGD", "momentum": 0.9}),
    (1, 64, {}),
)


@check("the hyperparameters are logged once, before training", "which call of the logger is meant for them?")
def hyperparameters(work: ModuleType) -> object:
    alone()
    seen = []
    for world_size, share, settings in BEGINNINGS:
        given, logger = dict(settings), Recorder()
        with mock.patch("torch.__version__", "9.8.7"), mock.patch("torch.version.__version__", "9.8.7"):
            found = work.begin(lambda logger=logger: logger, 0, world_size, share, given)
        seen.append((found is logger, logger.hyperparameters, given, logger.rows))
    return seen


@hyperparameters.judge
def _(seen: Any) -> None:
    for (world_size, share, settings), (returned, logged, given, rows) in zip(BEGINNINGS, seen, strict=True):
        expect(returned is True, "rank 0 does not get the logger that was made", "what does begin() return?")
        expect(len(logged) == 1, f"calls of log_hyperparams: yours {len(logged)}, wanted 1")
        sizes = {"world_size": world_size, "global_batch_size": share * world_size}
        for name, value in {**settings, **sizes, "torch_version": "9.8.7"}.items():
            found = logged[0].get(name, "missing")
            same = str(found) == value if name == "torch_version" else found == value
            hint = "which numbers does somebody need who wants to run it again?"
            if name in settings:
                hint = "does each of the caller's settings become a hyperparameter, under its own name?"
            elif name == "global_batch_size":
                hint = "how many examples does a step take in all processes?"
            what = f"{world_size} processes, {share} examples each: {name}: yours {found}, wanted {value}"
            expect(same, what, hint)
        changed = f"the caller's settings afterwards: yours {given}, wanted {settings}"
        expect(given == settings, changed, "which dictionary do you write into?")
        expect(not rows, "there was no training, and metrics were logged")


# For `step_axis`: every how many steps, the steps before, and the steps that are added.
AXES = ((4, 0, 9), (4, 10, 9), (5, 23, 23), (3, 7, 2), (10, 4, 3))


@check("the steps are counted from the beginning of the training", "what does flush() do if no step was added?")
def step_axis(work: ModuleType) -> object:
    alone()
    seen = []
    for every, first, adds in AXES:
        logger = Recorder()
        log = work.LossLog(logger, every, first, CPU)
        for number in range(adds):
            log.add(torch.tensor([1.0 + number]), 0.5)
        log.flush()
        log.flush()
        seen.append((logger.rows, log.step))
    logger = Recorder()
    work.LossLog(logger, 5, 40, CPU).flush()
    return seen, logger.rows


@step_axis.judge
def _(seen: Any) -> None:
    logs, without_steps = seen
    for (every, first, adds), (rows, last) in zip(AXES, logs, strict=True):
        found, names = sorted({name for _, name, _ in rows}), ["train/learning_rate", "train/loss"]
        what = f"the names that are logged: yours {found}, wanted {names}"
        expect(found == names, what, "which names does the docstring give?")
        wanted = [span.stop for span in spans(every, adds, first)]
        for name in names:
            at = steps(rows, name)
            hint = "an entry is at each multiple of `every`: of which number, and before or after it is counted?"
            if at == wanted[: len(at)]:
                hint = "which steps are in no entry yet when flush() is called?"
            elif None not in at and len(set(at)) < len(at):
                hint = "the last two calls are flush(): at which step is its entry, and when is there none?"
            what = f"steps {first + 1} to {first + adds}, every {every}, then flush() twice: the steps of {name}"
            expect(at == wanted, f"{what}: yours {at}, wanted {wanted}", hint)
        what = f"after {first} steps and {adds} more: the log's step: yours {last}, wanted {first + adds}"
        expect(last == first + adds, what, "which number counts the steps?")
    expect(not without_steps, "no step was added, and flush() has logged")


# Examples of each rank in each step: the shares are unequal, and one is empty.
COUNTS = ((4, 4, 3), (4, 4, 4), (1, 7, 0), (5, 2, 2), (0, 0, 6), (3, 1, 0), (2, 2, 2))


def losses_of(step: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.rand(COUNTS[step][rank], generator=generator, dtype=torch.float64) * (1 + 5 * rank + step)


INTERVALS = (3, 1, 4, 50)  # of `global_loss`: every how many steps


def rate_of(step: int) -> float:
    return 0.5 / (1 + step)


@check(
    "the loss is the mean over the examples of all processes",
    "do all processes reduce at the same steps, those without a logger or without examples too?",
    ranks=RANKS,
    seconds=10,
)
def global_loss(work: ModuleType) -> object:
    rank, rows = group(), []
    for every in INTERVALS:
        logger = Recorder() if rank == 0 else None
        log = work.LossLog(logger, every, 0, CPU)
        for step in range(len(COUNTS)):
            log.add(losses_of(step, rank).requires_grad_(), rate_of(step))
        log.flush()
        rows.append(logger and logger.rows)
    dist.barrier()
    return rows


@global_loss.judge
def _(first: Any, *_: Any) -> None:
    for every, rows in zip(INTERVALS, first, strict=True):
        what, entries = f"{RANKS} processes, 7 steps, every {every}, then flush(): the", spans(every, len(COUNTS))
        at, ends = steps(rows, "train/loss"), [span.stop for span in entries]
        expect(at == ends, f"{what} steps of the losses: yours {at}, wanted {ends}", "does each step count?")
        losses = [torch.cat([losses_of(step, rank) for step in span for rank in range(RANKS)]) for span in entries]
        found, wanted = values(rows, "train/loss"), [some.mean().item() for some in losses]
        hint = "of which examples does this process know the losses? how many are there in each process?"
        if any(math.isnan(value) for value in found):
            hint = "what is the mean of no losses?"
        elif near(found[:1], wanted[:1]):
            hint = "what do the totals hold after an entry, in each process?"
        expect_near(f"{what} means", found, wanted, hint)
        hint = "which step's rate does the log hold when it flushes? a step without examples has one, too"
        found, wanted = values(rows, "train/learning_rate"), [rate_of(end - 1) for end in ends]
        expect_near(f"{what} rates of the last steps", found, wanted, hint)


@check(
    "the sum of the losses keeps 64 bits",
    "which type do the totals have, at the beginning and after an entry?",
    seconds=10,
)
def precise(work: ModuleType) -> object:
    alone()
    logger = Recorder()
    log = work.LossLog(logger, 3, 0, CPU)
    for loss in (1e8, 1.0, -1e8) * 3:
        log.add(torch.tensor([loss], dtype=torch.float64), 0.1)
    return logger.rows


@precise.judge
def _(rows: Any) -> None:
    expect_near("losses 1e8, 1 and -1e8, three times: the means", values(rows, "train/loss"), [1 / 3] * 3)


OF_TENSORS = "item tolist numpy cpu __float__ __int__ __bool__ __index__ __format__ __repr__"
FETCHING = [getattr(torch.Tensor, name) for name in OF_TENSORS.split()]


class Fetches(TorchFunctionMode):
    """Counts how often numbers of a tensor are fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function in FETCHING
        if function in (torch.tensor, torch.as_tensor) and args and isinstance(args[0], list | tuple):
            self.count += any(isinstance(argument, torch.Tensor) for argument in args[0])
        return function(*args, **(kwargs or {}))


@check("nothing is fetched or reduced between two entries", "which of your lines needs a tensor's number in Python?")
def seldom(work: ModuleType) -> object:
    alone()
    names = ("all_reduce", "reduce", "all_gather", "all_gather_object", "gather", "gather_object", "barrier")
    log, counts = work.LossLog(Recorder(), 5, 0, CPU), []
    with contextlib.ExitStack() as stack:
        patches = [mock.patch(f"torch.distributed.{name}", wraps=getattr(dist, name)) for name in names]
        mocks = [stack.enter_context(patch) for patch in patches]
        for _ in range(12):
            before = sum(mocked.call_count for mocked in mocks)
            losses = torch.rand(4)
            with Fetches() as fetches:
                log.add(losses, 0.1)
            counts.append((fetches.count, sum(mocked.call_count for mocked in mocks) - before))
    device = torch.device("meta")  # its tensors have no numbers that could be fetched
    try:
        work.LossLog(Recorder(), 1000, 0, device).add(torch.rand(4, device=device), 0.1)
    except (NotImplementedError, RuntimeError, TypeError) as error:
        return counts, str(error)[:150]
    return counts, None


@seldom.judge
def _(seen: Any) -> None:
    counts, error = seen
    for step, (fetched, reduced) in enumerate(counts, start=1):
        expect(step % 5 == 0 or not fetched, f"every 5 steps: in step {step} a number was fetched")
        what = f"every 5 steps: step {step} has a reduction too"
        expect(step % 5 == 0 or not reduced, what, "when must the numbers of the other processes be known?")
    expect(error is None, f"no number can be fetched from the device meta, and add() has failed there: {error}")


class Marked(torch.autograd.Function):
    """Its input; the graph holds on to `mark`."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, mark: object) -> torch.Tensor:
        ctx.mark = mark
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class Mark:
    """An object that a weak reference can point to."""


@check("the log keeps no step's graph in memory", "the losses have a grad_fn: what does it keep in memory?")
def no_graph(work: ModuleType) -> object:
    alone()
    log = work.LossLog(Recorder(), 1000, 0, CPU)
    marks = []
    for _ in range(3):
        mark = Mark()
        marks.append(weakref.ref(mark))
        losses = Marked.apply(torch.rand(4, requires_grad=True), mark)
        log.add(losses, 0.1)
        del mark, losses
    gc.collect()
    return sum(mark() is not None for mark in marks)


@no_graph.judge
def _(kept: Any) -> None:
    expect(kept == 0, f"after 3 steps the graphs of {kept} are still in memory")


def make_batches(sizes: list[int], seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, 2, 2, 1, generator=generator).double(), torch.randint(3, (size,), generator=generator))
        for size in sizes
    ]


def training(work: ModuleType, sizes: list[int], every: int) -> tuple[list, int, list[torch.Tensor]]:
    """An epoch with a rate that changes in each step: what was logged, the log's step, and the weights."""
    network = make_network()
    optimizer, schedule = make_optimizer(network)
    logger = Recorder()
    log = work.LossLog(logger, every, 0, CPU)
    work.train_epoch(network, make_batches(sizes, seed=every), optimizer, schedule, log)
    return logger.rows, log.step, list(network.parameters())


def make_network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double()


def make_optimizer(network: nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    weight, bias = network.parameters()
    groups = [{"params": [weight], "lr": 0.5}, {"params": [bias], "lr": 0.25}]
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step) ** 2)


def reference(batches: list) -> tuple[nn.Module, list[torch.Tensor]]:
    """The network after an epoch, and the losses of each step."""
    network = make_network()
    optimizer, schedule = make_optimizer(network)
    everything = []
    for images, labels in batches:
        optimizer.zero_grad()
        losses = F.cross_entropy(network(images), labels, reduction="none")
        losses.mean().backward()
        optimizer.step()
        schedule.step()
        everything.append(losses.detach())
    return network, everything


# Sizes of the batches, and every how many steps there is an entry.
RATES = (([4, 4, 4, 3, 4, 2], 1), ([5, 3, 1], 2))
TRAININGS = (([4, 4, 4, 3, 4, 2, 4], 3), ([1, 6], 50))


@check("the rate is the one that the step has used", "print the rate before and after schedule.step()")
def used_rate(work: ModuleType) -> object:
    alone()
    return [training(work, sizes, every)[0] for sizes, every in RATES]


@used_rate.judge
def _(seen: Any) -> None:
    for (sizes, every), rows in zip(RATES, seen, strict=True):
        at = [span.stop for span in spans(every, len(sizes))]
        wanted, found = [0.5 / step**2 for step in at], values(rows, "train/learning_rate")
        other_group = near(found, [rate / 2 for rate in wanted])
        hint = "there are two groups of parameters: of which one is the rate?" if other_group else ""
        expect_near(f"the rates of steps {at}", found, wanted, hint)


@check("tracking does not change the training", "which calls does each step need, in which order?")
def same_training(work: ModuleType) -> object:
    alone()
    return [training(work, sizes, every) for sizes, every in TRAININGS]


@same_training.judge
def _(seen: Any) -> None:
    for (sizes, every), (rows, last, weights) in zip(TRAININGS, seen, strict=True):
        wanted, losses = reference(make_batches(sizes, seed=every))
        away, count = largest_difference(weights, wanted.parameters()), len(sizes)
        expect(away < 1e-12, f"after {count} steps a weight is {away:.1e} from that of a training without log")
        hint = "what does add() get after each step: one number, or one for each example?"
        expect(last == count, f"the log's step after {count} steps: yours {last}, wanted {count}", hint)
        means = [torch.cat(losses[span.start : span.stop]).mean().item() for span in spans(every, count)]
        expect_near(f"batches of {sizes}, every {every}: the losses", values(rows, "train/loss"), means, hint)


TESTS = ((23, (5, 2, 9)), (460, (3, 0, 6)))  # for `tested`: the step, and the number of examples of each rank


def test_share(rank: int, counts: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    logits = torch.randn(counts[rank], 4, generator=generator) * (1 + rank)
    labels = torch.randint(4, (counts[rank],), generator=generator)
    return logits, torch.where(torch.arange(len(labels)) < rank * 3, logits.argmax(dim=1), labels)


@check(
    "the test's numbers are of all examples, under names of their own",
    "which processes take part in the reduction?",
    ranks=RANKS,
    seconds=10,
)
def tested(work: ModuleType) -> object:
    rank, rows = group(), []
    for step, counts in TESTS:
        logger = Recorder() if rank == 0 else None
        work.log_test(logger, *test_share(rank, counts), step)
        rows.append(logger and logger.rows)
    dist.barrier()
    return rows


@tested.judge
def _(first: Any, *_: Any) -> None:
    for (step, counts), rows in zip(TESTS, first, strict=True):
        shares = [test_share(rank, counts) for rank in range(RANKS)]
        logits, labels = (torch.cat(parts) for parts in zip(*shares, strict=True))
        accuracy = (logits.argmax(dim=1) == labels).float().mean().item()
        wanted = {"test/accuracy": accuracy, "test/loss": F.cross_entropy(logits, labels).item()}
        names = sorted({name for _, name, _ in rows})
        what = f"the names that are logged: yours {names}, wanted {[*wanted]}"
        expect(names == [*wanted], what, "which names does the docstring give?")
        for name, value in wanted.items():
            found, at = values(rows, name), steps(rows, name)
            hint = "over whose examples is your number the mean, and how many has each process?"
            if any(math.isnan(number) for number in found):
                hint = "what is the mean of no losses?"
            elif near(found, [100 * value]):
                hint = "what does the page show: a fraction, or per cent?"
            expect_near(f"shares of {counts} examples: {name}", found, [value], hint)
            what = f"{name} after {step} steps of training: its step: yours {at}, wanted {[step]}"
            expect(at == [step], what, "what does log_metrics get besides the numbers?")


# For `in_order`: the number of examples, and which of them each rank has.
SHARES = (
    (8, ((0, 3, 6), (1, 4, 7), (2, 5))),
    (6, ((5, 0, 2), (4,), (1, 3))),
    (2, ((1,), (), (0,))),
    (7, ((0, 3, 6), (1, 4, 0), (2, 5, 1))),  # padded to the same size
)


def guesses_of(length: int) -> torch.Tensor:
    return torch.arange(length) * 7 % 10 + 1000 * length


@check(
    "the table has each test example once, in the data set's order",
    "which processes take part, and how does rank 0 know to which example a guess belongs?",
    ranks=RANKS,
    seconds=10,
)
def in_order(work: ModuleType) -> object:
    rank, tables = group(), []
    for length, shares in SHARES:
        mine = torch.tensor(shares[rank], dtype=torch.int64)
        found = work.collect(mine, guesses_of(length)[mine], length)
        tables.append(found if found is None else [int(number) for number in found])
    dist.barrier()
    return tables


@in_order.judge
def _(*ranks: Any) -> None:
    for (length, shares), (table, *others) in zip(SHARES, zip(*ranks, strict=True), strict=True):
        wanted, hint = guesses_of(length).tolist(), ""
        if table and not {*table} <= {*wanted}:
            hint = "is what arrives the number that was sent?"
        elif sum(map(len, shares)) > length:
            hint = "how often is an example in the table that two processes have?"
        expect(table == wanted, f"{length} examples in shares of {shares}: yours {table}, wanted {wanted}", hint)
        expect(others == [None] * (RANKS - 1), "other ranks than 0 have a table too", "what do the other ranks return?")


ERRORS = (None, ValueError("NaN"), KeyboardInterrupt(), SystemExit(3), RuntimeError("gloo"))  # of `ended`


@check(
    "finalize gets the right status at every end of the training", "which lines run when training() raises an error?"
)
def ended(work: ModuleType) -> object:
    return [training_that_ends(work, error, logger) for error in ERRORS for logger in (Recorder(), None)]


def training_that_ends(work: ModuleType, error: BaseException | None, logger: Recorder | None) -> tuple:
    """The calls of training() and of finalize, whether the caller gets the error itself, and what it gets."""
    calls, raised = [], None

    def train() -> None:
        if logger:
            calls.extend(logger.ends)
            logger.ends.clear()
        calls.append("training")
        if logger:
            logger.log_metrics({"train/loss": 1.0}, step=1)
        if error:
            raise error

    try:
        work.tracked(logger, train)
    except BaseException as one:  # noqa: BLE001 - the training's own, whichever it is
        if isinstance(one, NotImplementedError):
            raise
        raised = one
    return [*calls, *(logger.ends if logger else [])], raised is error, repr(raised)


@ended.judge
def _(seen: Any) -> None:
    ends = [(error, with_logger) for error in ERRORS for with_logger in (True, False)]
    for (error, with_logger), (calls, same, raised) in zip(ends, seen, strict=True):
        what = f"a training that ends with {type(error).__name__}" if error else "a training that ends well"
        what += "" if with_logger else ", no logger"
        hint = "which line could keep the error from the caller?" if error else "which processes have a logger?"
        expect(same is True, f"{what}: the caller gets: yours {raised}, wanted {error!r}", hint)
        wanted = ["training", *(["failed" if error else "success"] if with_logger else [])]
        hint = "" if not error or isinstance(error, Exception) else "from which class does this error derive?"
        expect(calls == wanted, f"{what}: training() and finalize: yours {calls}, wanted {wanted}", hint)
