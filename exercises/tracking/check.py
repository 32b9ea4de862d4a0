"""Checks of tracking."""

import contextlib
import gc
import os
import weakref
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


def told(values: list[float]) -> str:
    return ", ".join(f"{value:g}" for value in values) or "none"


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
    expect(makers == [0], f"loggers were made by ranks {makers}")
    returned = all(right is True for _, right in ranks)
    expect(returned, "begin() must return the logger on rank 0, and None on the other ranks")


# For `hyperparameters`: the number of processes, the examples of each, and the settings.
BEGINNINGS = (
    (4, 16, {"seed": 7, "learning_rate": 0.1}),
    (3, 10, {"seed": 1, "optimizer": "SGD", "momentum": 0.9}),
    (1, 64, {}),
)


@check("the hyperparameters are logged once, before training", "which of them are needed to run it again?")
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
        expect(returned is True, "rank 0 does not get the logger that was made")
        expect(len(logged) == 1, f"log_hyperparams was called {len(logged)} times")
        sizes = {"world_size": world_size, "global_batch_size": share * world_size}
        for name, value in {**settings, **sizes, "torch_version": "9.8.7"}.items():
            found = logged[0].get(name, "missing")
            same = str(found) == value if name == "torch_version" else found == value
            expect(same, f"{world_size} processes, {share} examples each: {name}: yours {found}, wanted {value}")
        expect(given == settings, "the caller's settings were changed")
        expect(not rows, "there was no training, and metrics were logged")


# Examples of each rank in each step: the shares are unequal, and one is empty.
COUNTS = ((4, 4, 3), (4, 4, 4), (1, 7, 0), (5, 2, 2), (0, 0, 6), (3, 1, 0), (2, 2, 2))


def losses_of(step: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.rand(COUNTS[step][rank], generator=generator, dtype=torch.float64) * (1 + 5 * rank + step)


# For `global_loss`: every how many steps, and where an entry is to be.
INTERVALS = ((3, [3, 6, 7]), (1, [1, 2, 3, 4, 5, 6, 7]), (4, [4, 7]), (50, [7]))


def rate_of(step: int) -> float:
    return 0.5 / (1 + step)


def mean_over(steps: range) -> float:
    return torch.cat([losses_of(step, rank) for step in steps for rank in range(RANKS)]).mean().item()


@check(
    "the loss is the mean over the examples of all processes",
    "of which examples does this process know the losses? how many are there in each process?",
    ranks=RANKS,
    seconds=10,
)
def global_loss(work: ModuleType) -> object:
    rank, rows = group(), []
    for every, _ in INTERVALS:
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
    for (every, ends), rows in zip(INTERVALS, first, strict=True):
        begins = [0, *ends]
        wanted = [mean_over(range(begin, end)) for begin, end in zip(begins, ends, strict=False)]
        at, found = steps(rows, "train/loss"), values(rows, "train/loss")
        expect(
            at == ends,
            f"7 steps, every {every}, then flush(): the steps of the losses: yours {at}, wanted {ends}",
        )
        means = f"3 processes, every {every} steps: the means are {told(wanted)}, and logged were {told(found)}"
        expect(near(found, wanted), means)
        wanted, found = [rate_of(end - 1) for end in ends], values(rows, "train/learning_rate")
        last = f"7 steps, every {every}, in one of which rank 0 has no examples: the rates of the last steps"
        expect(near(found, wanted), f"{last}: yours {told(found)}, wanted {told(wanted)}")


@check("the sum of the losses keeps 64 bits", "what type do the totals have after an entry was logged?", seconds=10)
def precise(work: ModuleType) -> object:
    alone()
    logger = Recorder()
    log = work.LossLog(logger, 3, 0, CPU)
    for loss in (1e8, 1.0, -1e8) * 3:
        log.add(torch.tensor([loss], dtype=torch.float64), 0.1)
    return logger.rows


@precise.judge
def _(rows: Any) -> None:
    found = values(rows, "train/loss")
    expect(
        near(found, [1 / 3] * 3),
        f"losses 1e8, 1 and -1e8, three times: the means are 1/3, and logged were {told(found)}",
    )


# For `step_axis`: every how many steps, the steps before, the steps that are added, and where an entry is to be.
AXES = (
    (4, 0, 9, [4, 8, 9]),
    (4, 10, 9, [12, 16, 19]),
    (5, 23, 23, [25, 30, 35, 40, 45, 46]),
    (3, 7, 2, [9]),
    (10, 4, 3, [7]),
)


@check(
    "the steps are counted from the beginning of the training",
    "an entry is at each multiple of `every`: of which number?",
)
def step_axis(work: ModuleType) -> object:
    alone()
    seen = []
    for every, first, adds, _ in AXES:
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
    for (every, first, adds, wanted), (rows, last) in zip(AXES, logs, strict=True):
        for name in ("train/loss", "train/learning_rate"):
            at = steps(rows, name)
            expect(
                at == wanted,
                f"steps {first + 1} to {first + adds}, every {every}: the steps of {name}: yours {at}, wanted {wanted}",
            )
        expect(last == first + adds, f"after {first} steps and {adds} more, the log's step is {last}")
        names = {name for _, name, _ in rows}
        expect(names == {"train/loss", "train/learning_rate"}, f"logged were {sorted(names)}")
    expect(not without_steps, "no step was added, and flush() has logged")


OF_TENSORS = (
    "item",
    "tolist",
    "numpy",
    "cpu",
    "__float__",
    "__int__",
    "__bool__",
    "__index__",
    "__format__",
    "__repr__",
)
FETCHING = [getattr(torch.Tensor, name) for name in OF_TENSORS]


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


@check(
    "nothing is fetched or reduced between two entries",
    "what waits for the device? what waits for the other processes?",
)
def seldom(work: ModuleType) -> object:
    alone()
    names = ("all_reduce", "reduce", "all_gather", "all_gather_object", "gather", "gather_object", "barrier")
    logger, counts = Recorder(), []
    log = work.LossLog(logger, 5, 0, CPU)
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
    without_numbers = work.LossLog(logger, 1000, 0, device)
    for _ in range(4):
        try:
            without_numbers.add(torch.rand(4, device=device), 0.1)
        except (NotImplementedError, RuntimeError, TypeError) as error:
            if "gap" in str(error):
                raise
            return counts, logger.rows, str(error)[:150]
    return counts, logger.rows, None


@seldom.judge
def _(seen: Any) -> None:
    counts, rows, error = seen
    expect(len(counts) == 12, "not all steps were added")
    for step, (fetched, reduced) in enumerate(counts, start=1):
        expect(step % 5 == 0 or not fetched, f"every 5 steps: in step {step} a number was fetched")
        expect(step % 5 == 0 or not reduced, f"every 5 steps: step {step} has a reduction too")
    at = steps(rows, "train/loss")
    expect(at == [5, 10], f"every 5 steps: logged at {at}, not [5, 10]")
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
        at = sorted({*range(every, len(sizes) + 1, every), len(sizes)})
        wanted = [0.5 / step**2 for step in at]
        found = values(rows, "train/learning_rate")
        expect(near(found, wanted), f"at steps {at} the rates were {told(wanted)}, and logged were {told(found)}")


@check("tracking does not change the training", "which calls does each step need, in which order?")
def same_training(work: ModuleType) -> object:
    alone()
    return [training(work, sizes, every) for sizes, every in TRAININGS]


@same_training.judge
def _(seen: Any) -> None:
    for (sizes, every), (rows, last, weights) in zip(TRAININGS, seen, strict=True):
        wanted, losses = reference(make_batches(sizes, seed=every))
        away = largest_difference(weights, wanted.parameters())
        expect(
            away < 1e-12, f"after {len(sizes)} steps a weight differs by {away:.1e} from that of a training without log"
        )
        expect(last == len(sizes), f"after {len(sizes)} steps the log's step is {last}")
        ends = sorted({*range(every, len(sizes) + 1, every), len(sizes)})
        begins = [0, *ends]
        means = [torch.cat(losses[begin:end]).mean().item() for begin, end in zip(begins, ends, strict=False)]
        found = values(rows, "train/loss")
        expect(
            near(found, means),
            f"batches of {sizes}, every {every}: the losses are {told(means)}, and logged were {told(found)}",
        )


TEST_COUNTS = (5, 2, 9)


def test_share(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    logits = torch.randn(TEST_COUNTS[rank], 4, generator=generator) * (1 + rank)
    labels = torch.randint(4, (TEST_COUNTS[rank],), generator=generator)
    return logits, torch.where(torch.arange(len(labels)) < rank * 3, logits.argmax(dim=1), labels)


@check(
    "the test's numbers are of all examples, under names of their own",
    "add sums and counts over the processes, then divide once",
    ranks=RANKS,
    seconds=10,
)
def tested(work: ModuleType) -> object:
    rank, rows = group(), []
    for step in (23, 460):
        logger = Recorder() if rank == 0 else None
        work.log_test(logger, *test_share(rank), step)
        rows.append(logger and logger.rows)
    dist.barrier()
    return rows


@tested.judge
def _(first: Any, *_: Any) -> None:
    logits, labels = (torch.cat(parts) for parts in zip(*map(test_share, range(RANKS)), strict=True))
    wanted = {
        "test/loss": F.cross_entropy(logits, labels).item(),
        "test/accuracy": (logits.argmax(dim=1) == labels).float().mean().item(),
    }
    for step, rows in zip((23, 460), first, strict=True):
        names = sorted({name for _, name, _ in rows})
        expect(names == sorted(wanted), f"the names that were logged: yours {names}, wanted {sorted(wanted)}")
        for name, value in wanted.items():
            found, at = values(rows, name), steps(rows, name)
            expect(near(found, [value]), f"shares of {TEST_COUNTS}: {name} is {value:g}, and logged was {told(found)}")
            expect(at == [step], f"after {step} steps, {name} was logged at step {at}")


# For `in_order`: the number of examples, and which of them each rank has.
SHARES = (
    (7, ((0, 3, 6), (1, 4, 0), (2, 5, 1))),  # padded to the same size
    (8, ((0, 3, 6), (1, 4, 7), (2, 5))),
    (6, ((5, 0, 2), (4,), (1, 3))),
    (2, ((1,), (), (0,))),
)


def guesses_of(length: int) -> torch.Tensor:
    return torch.arange(length) * 7 % 10 + 1000 * length


@check(
    "the table has each test example once, in the data set's order",
    "how does rank 0 know to which example a guess belongs?",
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
    for (length, shares), everyone in zip(SHARES, zip(*ranks, strict=True), strict=True):
        guesses = guesses_of(length).tolist()
        what = f"{length} examples in shares of {shares}, guesses {guesses}"
        expect(everyone[0] == guesses, f"{what}: rank 0 has {everyone[0]}")
        expect(everyone[1:] == (None,) * (RANKS - 1), "other ranks than 0 have a table too")


@check(
    "finalize gets the right status at every end of the training", "which lines run when training() raises an error?"
)
def ended(work: ModuleType) -> object:
    return [
        training_that_ends(work, error, logger)
        for error in (None, ValueError("NaN"), KeyboardInterrupt(), SystemExit(3), RuntimeError("gloo"))
        for logger in (Recorder(), None)
    ]


def training_that_ends(work: ModuleType, error: BaseException | None, logger: Recorder | None) -> dict[str, Any]:
    calls, raised, ended_before = [], None, False

    def train() -> None:
        nonlocal ended_before
        calls.append(1)
        if logger:
            ended_before = bool(logger.ends)
            logger.log_metrics({"train/loss": 1.0}, step=1)
        if error:
            raise error

    try:
        work.tracked(logger, train)
    except BaseException as one:  # noqa: BLE001 - the training's own, whichever it is
        if isinstance(one, NotImplementedError):
            raise
        raised = one
    return {
        "error": error and type(error).__name__,
        "raised": repr(raised),
        "same": raised is error,
        "calls": len(calls),
        "ended before": ended_before,
        "ends": logger and logger.ends,
    }


@ended.judge
def _(seen: Any) -> None:
    expect(len(seen) == 10, "not all ends were tried")
    for number, one in enumerate(seen):
        error = one["error"]
        what = f"a training that ends with {error}" if error else "a training that ends well"
        expect(one["ended before"] is False, "finalize was called before the training")
        expect(one["same"] is True, f"{what}: the caller gets {one['raised']}")
        expect(one["calls"] == 1, f"{what} was called {one['calls']} times")
        if number % 2 == 0:  # with a logger
            wanted = ["failed" if number else "success"]
            expect(one["ends"] == wanted, f"{what}: finalize was called with, yours {one['ends']}, wanted {wanted}")
