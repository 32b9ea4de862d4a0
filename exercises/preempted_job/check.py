"""Checks of preempted_job."""

import contextlib
import functools
import io
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from exercises.checking import check, expect, expect_new_orders

RANKS = 3
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
LENGTH, EPOCHS, BATCH_SIZE = 13, 3, 4
LAST = EPOCHS * 4  # steps
save_whole = torch.save


class Killed(BaseException):
    """What nobody catches: the process ends here, as with kill -9."""


def alone() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def examples() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(LENGTH, 3, generator=generator), torch.randint(2, (LENGTH,), generator=generator)


def make_training(work: ModuleType, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    return work.Training(model, optimizer, CosineAnnealingLR(optimizer, LAST))


def make_plan(work: ModuleType, save_every: int = 5, seed: int = 0) -> Any:
    return work.Plan(EPOCHS, BATCH_SIZE, save_every, seed)


def start(
    work: ModuleType,
    folder: Path,
    before_step: Callable[[int], None] = lambda done: None,
    save_every: int = 5,
    seed: int = 1,
) -> tuple[int, Any, list[int]]:
    """Starts the job: its exit status, its training, and the numbers of the steps that it has made."""
    folder.mkdir(exist_ok=True)
    training, steps = make_training(work, seed), []

    def noted(done: int) -> None:
        steps.append(done)
        before_step(done)

    status = work.train(training, *examples(), make_plan(work, save_every), folder, noted)
    return status, training, steps


def signal_at(step: int, number: int = signal.SIGTERM) -> Callable[[int], None]:
    return lambda done: signal.raise_signal(number) if done == step else None


def killed_at(step: int) -> Callable[[int], None]:
    def before_step(done: int) -> None:
        if done == step:
            raise Killed

    return before_step


def weights(training: Any) -> list[Any]:
    """All values of the model's state dict."""
    return [values.tolist() for values in training.model.state_dict().values()]


def numbers(folder: Path) -> list[int]:
    """Of the files with a checkpoint's name, whatever the work makes of them."""
    found = (path.name.removeprefix("step-").removesuffix(".pt") for path in folder.glob("step-*.pt"))
    return sorted(int(word) for word in found if word.isdigit())


def shown(found: list[int]) -> str:
    return ", ".join(f"step-{number}.pt" for number in found) or "none"


# --- The signal ---

CHOSEN = (SIGNALS[:1], SIGNALS[1:], SIGNALS, SIGNALS * 2, SIGNALS[:1] * 3)


@check("both signals are noticed, however often they come", "what does signal.signal want? what is in SIGNALS?")
def noticed(work: ModuleType) -> object:
    seen = []
    for chosen in CHOSEN:
        notice = work.Notice()
        flags = [repr(notice.received)], [bool(notice.received)]
        for number in chosen:
            signal.raise_signal(number)
            flags[0].append(repr(notice.received))
            flags[1].append(bool(notice.received))
        seen.append(flags)
    return seen


@noticed.judge
def _(seen: Any) -> None:
    for chosen, (shown, (before, *flags)) in zip(CHOSEN, seen, strict=True):
        expect(before is False, "a signal is noticed before one has come")
        for number, flag, text in zip(chosen, flags, shown[1:], strict=True):
            expect(flag is True, f"after {signal.Signals(number).name} `received` is {text}")


@check("the signal sets the flag and does nothing else", "between which two lines of the program does it run?")
def nothing_else(work: ModuleType) -> object:
    training, folder, raised = make_training(work), Path("job"), None
    before = weights(training)
    alone()
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(printed):
        folder.mkdir()
        notice = work.Notice()
        calls = [mock.patch(f"torch.{name}", side_effect=Killed) for name in ("save", "distributed.all_reduce")]
        calls.append(mock.patch("torch.distributed.barrier", side_effect=Killed))
        with contextlib.ExitStack() as stack:
            for call in calls:
                stack.enter_context(call)
            try:
                for number in SIGNALS:
                    signal.raise_signal(number)
            except BaseException as error:  # noqa: BLE001 - SystemExit, and whatever else
                raised = type(error).__name__
    return {
        "raised": raised,
        "flag": bool(notice.received),
        "printed": printed.getvalue(),
        "weights": (before, weights(training)),
        "files": [path.name for path in folder.iterdir()],
    }


@nothing_else.judge
def _(seen: Any) -> None:
    raised, (before, after) = seen["raised"], seen["weights"]
    expect(raised != "Killed", "it saves, or calls the other ranks, in the middle of whatever the program does")
    expect(raised is None, f"it raises {raised} in the middle of whatever the program does")
    expect(seen["flag"] is True, "the flag is not set")
    expect(seen["printed"] == "", "it prints, in the middle of another print perhaps")
    expect(before == after and seen["files"] == [], "it changes the training")


FLAGS = [[bool(case >> rank & 1) for rank in range(RANKS)] for case in range(2**RANKS)]


@check(
    "if one rank has received a signal, all ranks know",
    "which operation tells every rank what all the others know?",
    ranks=RANKS,
    seconds=6,
)
def agreement(work: ModuleType) -> object:
    dist.init_process_group("gloo")
    return [bool(work.agreed(flags[dist.get_rank()])) for flags in FLAGS]


@agreement.judge
def _(*ranks: Any) -> None:
    for flags, found in zip(FLAGS, zip(*ranks, strict=True), strict=True):
        expect(found == (any(flags),) * RANKS, f"where the ranks' flags are {flags}, they agree on {list(found)}")


# For each rank the step before which it receives a signal.
SIGNALLED = ({2: 1}, {1: 6, 2: 7}, {0: 9}, {0: 3, 1: 3, 2: 3})


@check(
    "all ranks end after the same step",
    "does every rank make the same calls in each step, whether it has received a signal or not?",
    ranks=RANKS,
    seconds=10,
)
def end_together(work: ModuleType) -> object:
    dist.init_process_group("gloo")
    whole, seen = weights(start(work, Path("whole"), seed=0)[1]), []
    for case, steps in enumerate(SIGNALLED):
        folder = Path(f"job-{case}")
        at = steps.get(dist.get_rank(), -1)
        status, _, made = start(work, folder, signal_at(at, SIGNALS[case % 2]), seed=0)
        first = [made[-1] if made else None, int(status)]
        status, again, _ = start(work, folder, seed=2)
        seen.append((first, int(status), weights(again)))
        dist.barrier()
    return whole, seen


@end_together.judge
def _(*ranks: Any) -> None:
    for case, steps in enumerate(SIGNALLED):
        told = f"signals to {', '.join(f'rank {rank} in step {step}' for rank, step in steps.items())}"
        found = [seen[case][0] for _, seen in ranks]
        wanted = [[min(steps.values()), 143]] * RANKS
        expect(found == wanted, f"{told}: the ranks' last step and status: yours {found}, wanted {wanted}")
        statuses = [seen[case][1] for _, seen in ranks]
        expect(statuses == [0] * RANKS, f"{told}: started again, the statuses are {statuses}")
        same = all(seen[case][2] == whole for whole, seen in ranks)
        expect(same, f"{told}: started again, the weights are not those of a whole one")


# --- The checkpoint ---


def saved(work: ModuleType, folder: Path, done: int, steps: int) -> Any:
    """A training of some steps, and its checkpoint."""
    training = make_training(work)
    for _ in range(steps):
        training.optimizer.zero_grad()
        training.model(examples()[0]).square().sum().backward()
        training.optimizer.step()
        training.schedule.step()
    work.save(folder, training, done)
    return training


THERE = ([], [7], [9, 10, 11], [2, 10, 99, 100, 1000], [8, 25, 138])
OTHER_FILES = (
    "unfinished.tmp",
    "step-12.pt.tmp",
    "step-13.tmp",
    "notes.txt",
    "step-a.pt",
    "last-step-14.pt",
    "step-15_pt",
)


@check(
    "checkpoints are sorted by number, and other files do not count", "which one is first if both are text: 10 or 9?"
)
def sorted_numbers(work: ModuleType) -> object:
    seen = []
    for case, there in enumerate(THERE):
        folder = Path(f"job-{case}")
        folder.mkdir()
        for number in there[::2] + there[1::2]:
            work.path_of(folder, number).write_text("a checkpoint")
        for name in OTHER_FILES:
            (folder / name).write_text("something else")
        seen.append(list(work.saved_steps(folder)))
    return seen


@sorted_numbers.judge
def _(seen: Any) -> None:
    for wanted, found in zip(THERE, seen, strict=True):
        expect(found == wanted, f"the folder has {shown(wanted)} and other files, and found are {found}")


MADE = ((3, 3), (5, 17), (6, 138))  # the steps that were made, and the number that is saved


@check(
    "weights, momentum, rate and the number of steps come back", "which parts does a training have? what sets the rate?"
)
def comes_back(work: ModuleType) -> object:
    alone()

    def make(seed: int) -> Any:
        """With averages that are no parameters, and a schedule that counts epochs of four steps."""
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        return work.Training(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.5))

    def steps(training: Any, count: int) -> None:
        for _ in range(count):
            training.optimizer.zero_grad()
            training.model(examples()[0]).square().sum().backward()
            training.optimizer.step()
            training.schedule.step()

    seen = []
    for case, (made, done) in enumerate(MADE):
        folder = Path(f"job-{case}")
        folder.mkdir()
        training, again = make(0), make(1)
        steps(training, made)
        work.save(folder, training, done)
        found = work.load_latest(folder, again)
        states = [(weights(training), weights(again))]
        rates = []
        for _ in range(3):
            steps(training, 1)
            steps(again, 1)
            rates.append([one.optimizer.param_groups[0]["lr"] for one in (training, again)])
            states.append((weights(training), weights(again)))
        seen.append((found, states, rates))
    return seen


@comes_back.judge
def _(seen: Any) -> None:
    for (_, done), (found, states, rates) in zip(MADE, seen, strict=True):
        expect(found == done, f"saved after {done} steps, it goes on after {found}")
        (saved_weights, loaded), *later = states
        expect(saved_weights == loaded, "the weights (or what else is in the state dict) are not those that were saved")
        for more, (rate, (whole, again)) in enumerate(zip(rates, later, strict=True), start=1):
            expect(rate[0] == rate[1], f"the rate {more} step(s) later: yours {rate[1]:g}, wanted {rate[0]:g}")
            expect(whole == again, f"{more} step(s) later the weights are different: what does a step read?")


@check(
    "no whole checkpoint: training starts from the beginning",
    "what does torch.load raise for an empty file? what does load_latest return then?",
)
def from_scratch(work: ModuleType) -> object:
    alone()
    folder, seen = Path("job"), []
    folder.mkdir()
    for name, content in ((None, b""), ("unfinished.tmp", b"ha"), ("step-3.pt", b""), ("step-10.pt", b"ha")):
        if name:
            (folder / name).write_bytes(content)
        training = make_training(work)
        before = weights(training)
        found = work.load_latest(folder, training)
        seen.append(([path.name for path in folder.iterdir()], found, before == weights(training)))
    return seen


@from_scratch.judge
def _(seen: Any) -> None:
    expect(len(seen) == 4, "not all folders were tried")
    for names, found, unchanged in seen:
        there = ", ".join(names) or "nothing"
        expect(found == 0, f"the folder has {there}, no whole checkpoint, and training goes on after step {found}")
        expect(unchanged is True, f"the folder has {there}, and the weights are changed")


DAMAGES = (
    "",
    "is empty",
    "is cut off in the middle",
    "has lost its end",
    "is full of zeros",
    "is a text",
)  # of the checkpoint of step 11; at first there is none


@check("the latest whole checkpoint is taken", "what does torch.load raise for a damaged file, and which file is next?")
def latest_whole(work: ModuleType) -> object:
    alone()
    folder, other = Path("job"), Path("other")
    folder.mkdir()
    other.mkdir()
    made = [weights(saved(work, folder, 9, 1)), weights(saved(work, folder, 10, 2))]
    saved(work, other, 11, 3)
    whole = work.path_of(other, 11).read_bytes()
    # What else may lie there: unfinished, and newer.
    for name in ("unfinished.tmp", "step-12.pt.tmp", "step-13.tmp"):
        (folder / name).write_bytes(whole[: len(whole) // 2])
    contents = (
        None,
        b"",
        whole[: len(whole) // 2],
        whole[:-30],
        bytes(len(whole)),
        b"disk quota exceeded\n" * 9,
    )
    seen = []
    for content in contents:
        if content is not None:
            work.path_of(folder, 11).write_bytes(content)
        training = make_training(work, seed=3)
        seen.append((work.load_latest(folder, training), weights(training)))
    work.path_of(folder, 10).write_bytes(b"ha")
    training = make_training(work, seed=3)
    return made, seen, (work.load_latest(folder, training), weights(training))


@latest_whole.judge
def _(seen: Any) -> None:
    (of_9, of_10), loaded, (last, last_weights) = seen
    for damage, (found, values) in zip(DAMAGES, loaded, strict=True):
        told = f"steps 9 and 10 are whole{f', step 11 {damage}' if damage else ''}: training goes on after step {found}"
        expect(found == 10, told)
        expect(values == of_10, "the weights are not those of step 10")
    expect(last == 9, f"steps 10 and 11 are damaged, 9 is whole: training goes on after step {last}")
    expect(last_weights == of_9, "the weights are not those of step 9")


def opened(file: Any) -> contextlib.AbstractContextManager[Any]:
    """To write what torch.save is given: a path or an open file."""
    return contextlib.nullcontext(file) if hasattr(file, "write") else open(file, "wb")


def renames(before: Callable[[Path, Path], None]) -> contextlib.ExitStack:
    """Within it, `before` is called with both names when a file is about to be renamed."""

    def rename(real: Any, source: Any, target: Any, **options: Any) -> None:
        before(Path(source).resolve(), Path(target).resolve())
        real(source, target, **options)

    stack = contextlib.ExitStack()
    for name in ("replace", "rename"):
        stack.enter_context(mock.patch(f"os.{name}", functools.partial(rename, getattr(os, name))))
    return stack


@check("killed while it writes: the older checkpoints are whole", "what is the name of the unfinished file?")
def killed_writing(work: ModuleType) -> object:
    alone()
    folder = Path("job")
    folder.mkdir()
    saved(work, folder, 8, 1)
    training = saved(work, folder, 9, 2)
    before = {path.name: path.read_bytes() for path in folder.glob("step-*.pt")}
    seen = []

    def cut_off(obj: object, f: object, *_: object, **__: object) -> None:
        with opened(f) as file:
            file.write(b"ha")
            file.flush()
        raise Killed

    for done in (10, 9):  # another one, and one that is there already
        with mock.patch("torch.save", cut_off), contextlib.suppress(Killed):
            saved(work, folder, done, 3)
        whole = all((folder / name).exists() and (folder / name).read_bytes() == old for name, old in before.items())
        again = make_training(work, seed=3)
        seen.append((whole, work.load_latest(folder, again), weights(again)))
    return sorted(before), weights(training), seen


@killed_writing.judge
def _(seen: Any) -> None:
    names, of_9, after = seen
    expect(names == ["step-8.pt", "step-9.pt"], f"saved were steps 8 and 9, there are {names}")
    for done, (whole, found, values) in zip((10, 9), after, strict=True):
        expect(whole is True, f"killed while it wrote step {done}: steps 8 and 9 are not both whole")
        expect(found == 9 and values == of_9, f"killed while it wrote step {done}, it goes on after step {found}")


@check(
    "a checkpoint gets its name when it is whole, and older ones go after that",
    "in which order: write, rename, remove? in which folder does the unfinished file lie?",
)
def renamed_whole(work: ModuleType) -> object:
    alone()
    folder = Path("job").resolve()
    folder.mkdir()
    seen = []
    for done in (9, 10, 11, 12, 12):
        there = set(numbers(folder))
        target, events = work.path_of(folder, done).resolve(), []

        def before(
            source: Path, name: Path, target: Path = target, there: set[int] = there, events: list = events
        ) -> None:
            if name != target:
                return
            try:
                torch.load(source, weights_only=True)
                whole = True
            except Exception:  # noqa: BLE001 - however it can't be read
                whole = False
            events.append((source.parent == folder, sorted(there - set(numbers(folder))), whole))

        with renames(before):
            saved(work, folder, done, 1)
        seen.append((target.name, events, target.exists()))
    return seen


@renamed_whole.judge
def _(seen: Any) -> None:
    expect(len(seen) == 5, "not all steps were saved")
    for name, events, is_there in seen:
        for beside, missing, whole in events:
            expect(beside is True, "the unfinished file lay in another folder, maybe on another disk")
            expect(not missing, f"just before the rename {shown(missing)} was gone already")
            expect(whole is True, "when it got its name, the file was not whole")
        expect(bool(events), f"{name} did not get its name by a rename of a whole file")
        expect(is_there is True, f"{name} is not there when save() returns")


BEFORE = ([], [3], [3, 5], [5, 6], [2, 8, 9], [9, 10, 11], [5, 6, 99, 100], [5, 7, 9], [1, 2, 3, 5])  # step 7 is saved
IN_TURN = (8, 9, 10, 11, 100, 1000)


@check(
    "the last two are kept, and the new one is one of them", "which numbers can be in the folder when step 7 is saved?"
)
def two_kept(work: ModuleType) -> object:
    alone()
    seen, in_turn = [], []
    for case, there in enumerate(BEFORE):
        folder = Path(f"job-{case}")
        folder.mkdir()
        (folder / "notes.txt").write_text("mine")
        for number in there:
            work.path_of(folder, number).write_bytes(b"ha")
        saved(work, folder, 7, 1)
        seen.append((numbers(folder), (folder / "notes.txt").exists()))
    folder = Path("job")
    folder.mkdir()
    for done in IN_TURN:
        saved(work, folder, done, 1)
        in_turn.append(numbers(folder))
    return seen, in_turn


@two_kept.judge
def _(seen: Any) -> None:
    cases, in_turn = seen
    for there, (found, has_notes) in zip(BEFORE, cases, strict=True):
        earlier = [number for number in there if number < 7]
        wanted = sorted([*earlier[-1:], 7])
        expect(found == wanted, f"there were {shown(there)}; with step 7 saved there are {shown(found)}")
        expect(has_notes is True, "a file that is no checkpoint was removed")
    kept: list[int] = []
    for done, found in zip(IN_TURN, in_turn, strict=True):
        kept = [*kept[-1:], done]
        expect(found == kept, f"after step {done} there are {shown(found)}")


@check(
    "rank 0 writes, and the others wait for it",
    "which ranks write? which ranks come to the line where they wait?",
    ranks=RANKS,
    seconds=8,
)
def one_writer(work: ModuleType) -> object:
    dist.init_process_group("gloo")
    rank, folder, savers = dist.get_rank(), Path("job"), []
    folder.mkdir(exist_ok=True)
    dist.barrier()

    def noted(*arguments: Any, **options: Any) -> None:
        savers.append(rank)
        save_whole(*arguments, **options)

    def others_return(_source: Path, _target: Path) -> None:
        """Gives the others half a second to return from save(), which they must not."""
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline and not list(Path().glob("returned-*")):
            time.sleep(0.02)

    with mock.patch("torch.save", noted), renames(others_return):
        saved(work, folder, 7, 1)
    there = work.path_of(folder, 7).exists()
    Path(f"returned-{rank}").touch()
    dist.barrier()
    training = make_training(work, seed=3 + rank)
    return (
        savers,
        there,
        work.load_latest(folder, training),
        [parameter.sum().item() for parameter in training.model.parameters()],
    )


@one_writer.judge
def _(*ranks: Any) -> None:
    savers, there, found, sums = zip(*ranks, strict=True)
    everyone = sum(savers, [])
    expect(everyone == [0], f"torch.save was called by ranks {everyone or 'none'}")
    expect(all(there), f"when save() returned, the file was there, by rank: {list(there)}")
    expect(found == (7,) * RANKS, f"saved after step 7, the ranks go on after {list(found)}")
    expect(all(one == sums[0] for one in sums), "the ranks have not loaded the same weights")


# --- The training ---

PLANS = ((13, 3, 4, 0), (12, 3, 4, 5), (5, 2, 8, 1), (7, 2, 1, 2), (21, 2, 8, 3))  # examples, epochs, batch size, seed


@check(
    "the batches after k steps are those of a whole training",
    "after k steps: which epoch, and how many of its batches?",
)
def same_batches(work: ModuleType) -> object:
    seen = []
    for length, epochs, batch_size, seed in PLANS:
        plan = work.Plan(epochs, batch_size, 5, seed)
        state = torch.get_rng_state().tolist()
        whole = [list(map(int, batch)) for batch in work.batches(length, plan, 0)]
        later = [
            [list(map(int, batch)) for batch in work.batches(length, plan, done)] for done in range(len(whole) + 1)
        ]
        seen.append((whole, later, state == torch.get_rng_state().tolist()))
    return seen


@same_batches.judge
def _(seen: Any) -> None:
    for (length, epochs, batch_size, _), (whole, later, untouched) in zip(PLANS, seen, strict=True):
        told = f"{length} examples, {epochs} epochs, batches of {batch_size}"
        sizes = [len(batch) for batch in whole]
        per_epoch = [min(batch_size, length - first) for first in range(0, length, batch_size)]
        expect(sizes == per_epoch * epochs, f"{told}: batches of {sizes}")
        expect(len(later) == len(whole) + 1, f"{told}: not all steps were tried")
        for done, found in enumerate(later):
            expect(
                found == whole[done:], f"{told}: after {done} steps, yours {found[:2]}..., wanted {whole[done:][:2]}..."
            )
        expect(
            untouched is True,
            "the order changes other random numbers of the program: use a generator for the order alone",
        )


SEEDS = (0, 12347, 77)  # no round numbers: seed + 1000 * epoch is right too


@check("every epoch has all examples, in its own order", "what does the seed of the generator depend on?")
def orders(work: ModuleType) -> object:
    return [[list(map(int, batch)) for batch in work.batches(50, work.Plan(4, 16, 5, seed), 0)] for seed in SEEDS]


@orders.judge
def _(seen: Any) -> None:
    found: dict[tuple[int, int], list[int]] = {}
    for seed, parts in zip(SEEDS, seen, strict=True):
        expect(len(parts) == 16, f"4 epochs of 50 examples in batches of 16 are {len(parts)} batches")
        for epoch in range(4):
            order = sum(parts[4 * epoch : 4 * epoch + 4], [])
            expect(sorted(order) == list(range(50)), f"epoch {epoch} does not have each of the 50 examples once")
            expect(order != sorted(order), f"epoch {epoch} is not shuffled")
            twin = next((other for other, one in found.items() if one == order), None)
            expect(twin is None, f"seed {seed}, epoch {epoch} has the order of seed and epoch {twin}")
            found[seed, epoch] = order
        expect_new_orders([order for (of_seed, _), order in found.items() if of_seed == seed])


@check(
    "interrupted after any step and started again, it ends with the same weights",
    "which values does a step read, besides the weights? which step comes next?",
)
def same_end(work: ModuleType) -> object:
    alone()
    _, whole, made = start(work, Path("whole"), seed=0)
    interrupted = []
    for step in range(LAST - 1):
        folder = Path(f"job-{step}")
        _, _, before = start(work, folder, signal_at(step, SIGNALS[step % 2]), seed=0)
        there = numbers(folder)
        _, again, after = start(work, folder)
        interrupted.append((before, there, after, weights(again)))
    folder = Path("often")
    for step in (2, 3, 4, 9):
        start(work, folder, signal_at(step), seed=0)
    return made, weights(whole), interrupted, weights(start(work, folder)[1])


@same_end.judge
def _(seen: Any) -> None:
    made, whole, interrupted, often = seen
    expect(made == list(range(LAST)), f"a training of {LAST} steps made steps {made}")
    expect(len(interrupted) == LAST - 1, "not all steps were interrupted")
    for step, (before, there, after, again) in enumerate(interrupted):
        told = f"a signal before step {step}: "
        expect(before == list(range(step + 1)), f"{told}the last step made is {before[-1] if before else 'none'}")
        expect(step + 1 in there, f"{told}there is no checkpoint after {step + 1} steps")
        expect(after == list(range(step + 1, LAST)), f"{told}started again, it made steps {after}")
        expect(again == whole, f"{told}started again, it ended with other weights")
    expect(often == whole, "interrupted four times, it ended with other weights")


KILLED = ((5, 3), (5, 7), (5, 11), (3, 7), (2, 9), (100, 11))  # save_every, and the step before which it is killed


@check(
    "killed without a signal, it goes on after the last periodic checkpoint",
    "does it count the steps of the whole training?",
)
def periodic(work: ModuleType) -> object:
    alone()
    _, whole, _ = start(work, Path("whole"), seed=0)
    seen = []
    for save_every, step in KILLED:
        folder = Path(f"job-{save_every}-{step}")
        with contextlib.suppress(Killed):
            start(work, folder, killed_at(step), save_every, seed=0)
        there = numbers(folder)
        _, again, made = start(work, folder, save_every=save_every, seed=1 if kept_of(save_every, step) else 0)
        seen.append((there, made, weights(again)))
    folder = Path("signal")
    for before_step in (signal_at(6), signal_at(-1)):
        start(work, folder, before_step, save_every=5, seed=0)
    return weights(whole), seen, numbers(folder)


def kept_of(save_every: int, step: int) -> list[int]:
    return list(range(save_every, step + 1, save_every))[-2:]


@periodic.judge
def _(seen: Any) -> None:
    whole, killed, at_the_end = seen
    for (save_every, step), (there, made, again) in zip(KILLED, killed, strict=True):
        wanted = kept_of(save_every, step)
        told = f"save_every={save_every}, killed before step {step}: yours {shown(there)}"
        expect(there == wanted, f"{told}, wanted {shown(wanted)}")
        expect(made == list(range(wanted[-1] if wanted else 0, LAST)), f"{told}; started again, it made steps {made}")
        expect(again == whole, f"{told}; started again, it ended with other weights")
    told = "save_every=5, a signal before step 6, started again: at the end yours"
    expect(at_the_end == [10, LAST], f"{told} {shown(at_the_end)}, wanted {shown([10, LAST])}")


INTERRUPTED = ((5, 0), (5, LAST - 2), (100, 4), (1, 4))  # save_every, and the step of the signal


@check("the exit status says whether to start it again", "after which step is no work left?")
def statuses(work: ModuleType) -> object:
    alone()
    seen = []
    for save_every, step in INTERRUPTED:
        folder = Path(f"job-{save_every}-{step}")
        first = start(work, folder, signal_at(step), save_every)[0]
        seen.append((first, start(work, folder, save_every=save_every)[0]))
    return seen, start(work, Path("last"), signal_at(LAST - 1))[0]


@statuses.judge
def _(seen: Any) -> None:
    interrupted, last = seen
    for (_, step), (first, second) in zip(INTERRUPTED, interrupted, strict=True):
        told = "SIGTERM would have given 128 + 15"
        expect(first == 143, f"interrupted in step {step} of {LAST}, the exit status is {first}; {told}")
        expect(second == 0 and second is not False, f"finished, the exit status is {second!r}")
    expect(last == 0, f"a signal in the last step: no step is left, and the exit status is {last}")


FINISHED = ((5, -1), (LAST, -1), (100, LAST - 1))  # save_every, and the step of a signal


@check("a finished job that is started again does nothing more", "what is saved after the last step?")
def finished(work: ModuleType) -> object:
    alone()
    seen = []
    for save_every, last_signal in FINISHED:
        folder = Path(f"job-{save_every}")
        _, whole, _ = start(work, folder, signal_at(last_signal), save_every, seed=0)
        there = numbers(folder)
        before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
        status, again, made = start(work, folder, save_every=save_every)
        after = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
        seen.append((there, made, status, weights(again), weights(whole), before, after))
    return seen


@finished.judge
def _(seen: Any) -> None:
    for (save_every, _), (there, made, status, again, whole, before, after) in zip(FINISHED, seen, strict=True):
        expect(LAST in there, f"save_every={save_every}: after the last step there are {there}")
        expect(made == [], f"started again, it made steps {made}")
        expect(status == 0, f"started again, its exit status is {status}")
        expect(again == whole, "started again, it has other weights")
        expect(before == after, "started again, it changed files")
