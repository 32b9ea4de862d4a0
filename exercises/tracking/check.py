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

from exercises.checking import check, expect
from exercises.ranks import gathered

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

    def steps(self, name: str) -> list[int | None]:
        return [step for step, found, _ in self.rows if found == name]

    def values(self, name: str) -> list[float]:
        return [value for _, found, value in self.rows if found == name]


def alone() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def group() -> int:
    """This process's rank; as on several nodes, where each process is the first one of its node."""
    dist.init_process_group("gloo")
    os.environ["LOCAL_RANK"] = "0"
    return dist.get_rank()


def near(found: list[float], wanted: list[float]) -> bool:
    pairs = zip(found, wanted, strict=False)
    return len(found) == len(wanted) and all(abs(one - other) < 1e-6 * (1 + abs(other)) for one, other in pairs)


def told(values: list[float]) -> str:
    return ", ".join(f"{value:g}" for value in values) or "none"


@check("rank 0 alone makes the logger", "which processes run the line that makes the logger?", ranks=RANKS, seconds=10)
def one_logger(work: ModuleType) -> None:
    rank, made = group(), []

    def make() -> Recorder:
        made.append(Recorder())
        return made[-1]

    found = work.begin(make, rank, RANKS, 8, {"seed": 0})
    ranks = [number for number, count in enumerate(gathered(len(made))) for _ in range(count)]
    expect(ranks == [0], f"loggers were made by ranks {ranks}")
    kinds = gathered(found is (made[0] if made else None))
    expect(all(kinds), "begin() must return the logger on rank 0, and None on the other ranks")


@check("the hyperparameters are logged once, before training", "which of them are needed to run it again?")
def hyperparameters(work: ModuleType) -> None:
    alone()
    for world_size, share, settings in (
        (4, 16, {"seed": 7, "learning_rate": 0.1}),
        (3, 10, {"seed": 1, "optimizer": "SGD", "momentum": 0.9}),
        (1, 64, {}),
    ):
        kept = dict(settings)
        logger = Recorder()
        with mock.patch("torch.__version__", "9.8.7"), mock.patch("torch.version.__version__", "9.8.7"):
            found = work.begin(lambda logger=logger: logger, 0, world_size, share, settings)
        expect(found is logger, "rank 0 does not get the logger that was made")
        times = len(logger.hyperparameters)
        expect(times == 1, f"log_hyperparams was called {times} times")
        wanted = {**kept, "world_size": world_size, "global_batch_size": share * world_size, "torch_version": "9.8.7"}
        for name, value in wanted.items():
            seen = logger.hyperparameters[0].get(name, "missing")
            same = str(seen) == value if name == "torch_version" else seen == value
            expect(same, f"{world_size} processes, {share} examples each: {name} is {seen}, not {value}")
        expect(settings == kept, "the caller's settings were changed")
        expect(not logger.rows, "there was no training, and metrics were logged")


# Examples of each rank in each step: the shares are unequal, and one is empty.
COUNTS = ((4, 4, 3), (4, 4, 4), (1, 7, 0), (5, 2, 2), (0, 0, 6), (3, 1, 0), (2, 2, 2))


def losses_of(step: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.rand(COUNTS[step][rank], generator=generator, dtype=torch.float64) * (1 + 5 * rank + step)


def mean_over(steps: range) -> float:
    return torch.cat([losses_of(step, rank) for step in steps for rank in range(RANKS)]).mean().item()


@check(
    "the loss is the mean over the examples of all processes",
    "of which examples does this process know the losses? how many are there in each process?",
    ranks=RANKS,
    seconds=10,
)
def global_loss(work: ModuleType) -> None:
    rank = group()
    for every, ends in ((3, (3, 6, 7)), (1, range(1, 8)), (4, (4, 7)), (50, (7,))):
        logger = Recorder() if rank == 0 else None
        log = work.LossLog(logger, every, 0, CPU)
        for step in range(len(COUNTS)):
            log.add(losses_of(step, rank).requires_grad_(), 0.1)
        log.flush()
        if logger is None:
            continue
        begins = [0, *ends]
        wanted = [mean_over(range(begin, end)) for begin, end in zip(begins, ends, strict=False)]
        steps, found = logger.steps("train/loss"), logger.values("train/loss")
        expect(
            steps == list(ends),
            f"7 steps, every {every}, then flush(): losses were logged at steps {steps}, not {list(ends)}",
        )
        means = f"3 processes, every {every} steps: the means are {told(wanted)}, and logged were {told(found)}"
        expect(near(found, wanted), means)
    dist.barrier()


@check(
    "the steps are counted from the beginning of the training",
    "an entry is at each multiple of `every`: of which number?",
)
def step_axis(work: ModuleType) -> None:
    alone()
    for every, first, adds, wanted in (
        (4, 0, 9, [4, 8, 9]),
        (4, 10, 9, [12, 16, 19]),
        (5, 23, 23, [25, 30, 35, 40, 45, 46]),
        (3, 7, 2, [9]),
        (10, 4, 3, [7]),
    ):
        logger = Recorder()
        log = work.LossLog(logger, every, first, CPU)
        for number in range(adds):
            log.add(torch.tensor([1.0 + number]), 0.5)
        log.flush()
        log.flush()
        for name in ("train/loss", "train/learning_rate"):
            steps = logger.steps(name)
            expect(
                steps == wanted,
                f"steps {first + 1} to {first + adds}, every {every}: {name} was logged at {steps}, not {wanted}",
            )
        expect(log.step == first + adds, f"after {first} steps and {adds} more, the log's step is {log.step}")
        names = {name for _, name, _ in logger.rows}
        expect(names == {"train/loss", "train/learning_rate"}, f"logged were {sorted(names)}")
    logger = Recorder()
    work.LossLog(logger, 5, 40, CPU).flush()
    expect(not logger.rows, "no step was added, and flush() has logged")


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
            self.count += any(isinstance(one, torch.Tensor) for one in args[0])
        return function(*args, **(kwargs or {}))


@check(
    "nothing is fetched or reduced between two entries",
    "what waits for the device? what waits for the other processes?",
)
def seldom(work: ModuleType) -> None:
    alone()
    names = ("all_reduce", "reduce", "all_gather", "all_gather_object", "gather", "gather_object", "barrier")
    logger = Recorder()
    log = work.LossLog(logger, 5, 0, CPU)
    with contextlib.ExitStack() as stack:
        patches = [mock.patch(f"torch.distributed.{name}", wraps=getattr(dist, name)) for name in names]
        mocks = [stack.enter_context(patch) for patch in patches]
        for step in range(1, 13):
            before = sum(one.call_count for one in mocks)
            losses = torch.rand(4)
            with Fetches() as fetches:
                log.add(losses, 0.1)
            expect(step % 5 == 0 or not fetches.count, f"every 5 steps: in step {step} a number was fetched")
            reduced = sum(one.call_count for one in mocks) - before
            expect(step % 5 == 0 or not reduced, f"every 5 steps: step {step} has a reduction too")
    expect(logger.steps("train/loss") == [5, 10], f"every 5 steps: logged at {logger.steps('train/loss')}, not [5, 10]")
    device = torch.device("meta")  # its tensors have no numbers that could be fetched
    log = work.LossLog(logger, 1000, 0, device)
    for _ in range(4):
        try:
            log.add(torch.rand(4, device=device), 0.1)
        except (NotImplementedError, RuntimeError, TypeError) as error:
            if "gap" in str(error):
                raise
            expect(
                False, f"no number can be fetched from the device meta, and add() has failed there: {str(error)[:150]}"
            )


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
def no_graph(work: ModuleType) -> None:
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
    kept = sum(mark() is not None for mark in marks)
    expect(not kept, f"after 3 steps the graphs of {kept} are still in memory")


def training(work: ModuleType, sizes: list[int], every: int, seed: int) -> tuple[Recorder, Any, nn.Module, list]:
    """An epoch with a rate that changes in each step: the logger, the log, the network, the batches."""
    generator = torch.Generator().manual_seed(seed)
    batches = [
        (torch.randn(size, 2, 2, 1, generator=generator).double(), torch.randint(3, (size,), generator=generator))
        for size in sizes
    ]
    network = make_network()
    optimizer, schedule = make_optimizer(network)
    logger = Recorder()
    log = work.LossLog(logger, every, 0, CPU)
    work.train_epoch(network, batches, optimizer, schedule, log)
    return logger, log, network, batches


def make_network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double()


def make_optimizer(network: nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    optimizer = torch.optim.SGD([{"params": [one]} for one in network.parameters()], lr=0.5, momentum=0.9)
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


@check("the rate is the one that the step has used", "print the rate before and after schedule.step()")
def used_rate(work: ModuleType) -> None:
    alone()
    for sizes, every in (([4, 4, 4, 3, 4, 2], 1), ([5, 3, 1], 2)):
        logger, *_ = training(work, sizes, every, seed=every)
        steps = sorted({*range(every, len(sizes) + 1, every), len(sizes)})
        wanted = [0.5 / step**2 for step in steps]
        found = logger.values("train/learning_rate")
        expect(near(found, wanted), f"at steps {steps} the rates were {told(wanted)}, and logged were {told(found)}")


@check("tracking does not change the training", "which calls does each step need, in which order?")
def same_training(work: ModuleType) -> None:
    alone()
    for sizes, every in (([4, 4, 4, 3, 4, 2, 4], 3), ([1, 6], 50)):
        logger, log, network, batches = training(work, sizes, every, seed=every)
        wanted, losses = reference(batches)
        pairs = zip(network.parameters(), wanted.parameters(), strict=True)
        away = max((one - other).abs().max().item() for one, other in pairs)
        expect(
            away < 1e-12, f"after {len(sizes)} steps a weight differs by {away:.1e} from that of a training without log"
        )
        expect(log.step == len(sizes), f"after {len(sizes)} steps the log's step is {log.step}")
        ends = sorted({*range(every, len(sizes) + 1, every), len(sizes)})
        begins = [0, *ends]
        means = [torch.cat(losses[begin:end]).mean().item() for begin, end in zip(begins, ends, strict=False)]
        found = logger.values("train/loss")
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
def tested(work: ModuleType) -> None:
    rank = group()
    for step in (23, 460):
        logger = Recorder() if rank == 0 else None
        work.log_test(logger, *test_share(rank), step)
        if logger is None:
            continue
        logits, labels = (torch.cat(parts) for parts in zip(*map(test_share, range(RANKS)), strict=True))
        wanted = {
            "test/loss": F.cross_entropy(logits, labels).item(),
            "test/accuracy": (logits.argmax(dim=1) == labels).float().mean().item(),
        }
        names = sorted({name for _, name, _ in logger.rows})
        expect(names == sorted(wanted), f"the names that were logged are {names}, not {sorted(wanted)}")
        for name, value in wanted.items():
            found = logger.values(name)
            expect(near(found, [value]), f"shares of {TEST_COUNTS}: {name} is {value:g}, and logged was {told(found)}")
            expect(logger.steps(name) == [step], f"after {step} steps, {name} was logged at step {logger.steps(name)}")
    dist.barrier()


@check(
    "the table has each test example once, in the data set's order",
    "how does rank 0 know to which example a guess belongs?",
    ranks=RANKS,
    seconds=10,
)
def in_order(work: ModuleType) -> None:
    rank = group()
    for length, shares in (
        (7, ((0, 3, 6), (1, 4, 0), (2, 5, 1))),  # padded to the same size
        (8, ((0, 3, 6), (1, 4, 7), (2, 5))),
        (6, ((5, 0, 2), (4,), (1, 3))),
        (2, ((1,), (), (0,))),
    ):
        guesses = torch.arange(length) * 7 % 10 + length
        mine = torch.tensor(shares[rank], dtype=torch.int64)
        found = work.collect(mine, guesses[mine], length)
        found = found if found is None else [int(one) for one in found]
        everyone = gathered(found)
        what = f"{length} examples in shares of {shares}, guesses {guesses.tolist()}"
        expect(everyone[0] == guesses.tolist(), f"{what}: rank 0 has {everyone[0]}")
        expect(everyone[1:] == [None] * (RANKS - 1), "other ranks than 0 have a table too")


@check(
    "finalize gets the right status at every end of the training", "which lines run when training() raises an error?"
)
def ended(work: ModuleType) -> None:
    for error in (None, ValueError("NaN"), KeyboardInterrupt(), SystemExit(3), RuntimeError("gloo")):
        for logger in (Recorder(), None):
            calls, raised = [], None

            def train(logger: Recorder | None = logger, calls: list = calls, error: Any = error) -> None:
                calls.append(1)
                if logger:
                    expect(not logger.ends, "finalize was called before the training")
                    logger.log_metrics({"train/loss": 1.0}, step=1)
                if error:
                    raise error

            try:
                work.tracked(logger, train)
            except BaseException as one:  # noqa: BLE001 - the training's own, whichever it is
                if isinstance(one, NotImplementedError):
                    raise
                raised = one
            what = f"a training that ends with {type(error).__name__}" if error else "a training that ends well"
            expect(raised is error, f"{what}: the caller gets {raised!r}")
            expect(len(calls) == 1, f"{what} was called {len(calls)} times")
            if logger:
                wanted = ["failed" if error else "success"]
                expect(logger.ends == wanted, f"{what}: finalize was called with {logger.ends}, not {wanted}")
