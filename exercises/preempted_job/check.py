"""Checks of preempted_job."""

import contextlib
import functools
import io
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from exercises.checking import check, expect, expect_new_orders
from torch import nn
from torch.optim.lr_scheduler import StepLR

RANKS = 3
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
LENGTH, EPOCHS, BATCH_SIZE = 13, 3, 4
LAST = EPOCHS * 4  # steps
generator = torch.Generator().manual_seed(1)
IMAGES, LABELS = torch.randn(LENGTH, 3, generator=generator), torch.randint(2, (LENGTH,), generator=generator)
save_whole = torch.save


class Killed(BaseException):
    """What nobody catches: the process ends here, as with kill -9."""


def join() -> int:
    """Joins the group of the check's ranks; returns this process's rank."""
    alone = {"store": dist.HashStore(), "rank": 0, "world_size": 1} if os.environ["WORLD_SIZE"] == "1" else {}
    dist.init_process_group("gloo", **alone)
    return dist.get_rank()


def make_folder(name: str) -> Path:
    folder = Path(name).resolve()
    folder.mkdir(exist_ok=True)
    return folder


def make_training(work: ModuleType, seed: int, norm: bool = False) -> Any:
    """With a rate that is halved after every fourth step and, if `norm`, with averages that are no parameters."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4) if norm else nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    return work.Training(model, optimizer, StepLR(optimizer, 4, gamma=0.5))


def make_step(training: Any) -> None:
    training.optimizer.zero_grad()
    training.model(IMAGES).square().mean().backward()
    training.optimizer.step()
    training.schedule.step()


def saved(work: ModuleType, folder: Path, done: int, steps: int = 1) -> Any:
    """A training of some steps, and its checkpoint."""
    training = make_training(work, 0, norm=True)
    for _ in range(steps):
        make_step(training)
    work.save(folder, training, done)
    return training


def weights(training: Any) -> list[Any]:
    """All values of the model's state dict."""
    return [values.tolist() for values in training.model.state_dict().values()]


def numbers(folder: Path) -> list[int]:
    """Of the files with a checkpoint's name, whatever the work makes of them."""
    found = (path.name.removeprefix("step-").removesuffix(".pt") for path in folder.glob("step-*.pt"))
    return sorted(int(word) for word in found if word.isdigit())


# --- The signal ---

CHOSEN = (SIGNALS[:1], SIGNALS[1:], SIGNALS * 2)


@check(
    "each signal sets `received`, however often it comes, and does nothing else",
    "what does signal.signal want? who handles a signal that comes a second time?",
    ranks=2,
)
def noticed(work: ModuleType) -> object:
    join()
    seen, stop = [], mock.Mock(side_effect=Killed)
    calls = mock.patch.multiple(dist, barrier=stop, all_reduce=stop)
    with calls, contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        for chosen in CHOSEN:
            for number in SIGNALS:  # by default they would end the process
                signal.signal(number, lambda number, frame: None)
            at_ctrl_c = signal.getsignal(signal.SIGINT)
            notice, raised = work.Notice(), ""
            flags = [bool(notice.received)]
            for number in chosen:
                try:
                    signal.raise_signal(number)
                except NotImplementedError:
                    raise
                except BaseException as error:  # noqa: BLE001 - SystemExit, and whatever else
                    raised = type(error).__name__
                flags.append(bool(notice.received))
            seen.append((flags, raised, at_ctrl_c == signal.getsignal(signal.SIGINT)))
    return seen, out.getvalue()


@noticed.judge
def _(*ranks: Any) -> None:
    anywhere = "between which two lines of the program can it run?"
    for rank, (seen, printed) in enumerate(ranks):
        for chosen, (flags, raised, ctrl_c) in zip(CHOSEN, seen, strict=True):
            told = f"rank {rank}, {', '.join(number.name for number in chosen)}"
            expect(raised != "Killed", f"{told}: the handler calls the other ranks", anywhere)
            expect(not raised, f"{told}: the handler raises {raised}", anywhere)
            wanted = [False] + [True] * len(chosen)
            hint = "is `receive` called for each of SIGNALS, in each rank, and does it set the flag of this Notice?"
            hint = "what does a second signal do?" if flags[1] else hint
            expect(flags == wanted, f"{told}: `received` before and after each: yours {flags}, wanted {wanted}", hint)
            expect(ctrl_c, "Ctrl-C (SIGINT) has got another handler, too", "which signals must call `receive`?")
        expect(not printed, f"the handler prints {printed[:40]!r}", anywhere)


FLAGS = [[bool(case >> rank & 1) for rank in range(RANKS)] for case in range(2**RANKS)]


@check(
    "if one rank has received a signal, all ranks know",
    "which ranks take part in the call, and which of them get its result?",
    ranks=RANKS,
    seconds=6,
)
def agreement(work: ModuleType) -> object:
    rank = join()
    return [bool(work.agreed(flags[rank])) for flags in FLAGS]


@agreement.judge
def _(*ranks: Any) -> None:
    for flags, found in zip(FLAGS, zip(*ranks, strict=True), strict=True):
        wanted = (any(flags),) * RANKS
        told = f"flags {flags} of the ranks: their answers: yours {list(found)}, wanted {list(wanted)}"
        hint = "for which combinations of three flags is the answer True?" if len({*found}) == 1 else ""
        expect(found == wanted, told, hint)


# --- The checkpoint ---

THERE = ([], [9, 10, 11], [2, 10, 99, 100, 1000])
OTHER_FILES = ("unfinished.tmp", "step-12.pt.tmp", "step-13.tmp", "step-a.pt", "last-step-14.pt", "step-15_pt")


@check(
    "checkpoints are sorted by number, and other files do not count", "which one is first if both are text: 10 or 9?"
)
def sorted_numbers(work: ModuleType) -> object:
    seen = []
    for case, there in enumerate(THERE):
        folder = make_folder(f"job-{case}")
        for name in (*(f"step-{number}.pt" for number in there[::2] + there[1::2]), *OTHER_FILES):
            (folder / name).write_text("something")
        seen.append(list(work.saved_steps(folder)))
    return seen


@sorted_numbers.judge
def _(seen: Any) -> None:
    for there, found in zip(THERE, seen, strict=True):
        told = f"{', '.join([*(f'step-{number}.pt' for number in there), *OTHER_FILES])}: yours {found}, wanted {there}"
        expect(sorted(found) == there, told, "which of these names fit your pattern, and which ones should?")
        hint = "" if found == sorted(found, key=str) else "in what order does a folder list its files?"
        expect(found == there, told, hint)


@check(
    "rank 0 saves, all ranks wait, and the older checkpoints are whole at any moment",
    "which ranks write? the job is killed between two of your lines: what is in the folder then?",
    ranks=RANKS,
    seconds=8,
)
def whole_at_any_moment(work: ModuleType) -> object:
    join()
    folder = make_folder("job")
    return [moments(work, folder, done) for done in DONE]


DONE = (8, 9, 10, 10)  # at last a name that is taken


def moments(work: ModuleType, folder: Path, done: int) -> object:
    """The checkpoints that have changed when the new one is half written; what is seen at its renames; is it there?"""

    def contents() -> set[tuple[int, bytes]]:
        return {(number, (folder / f"step-{number}.pt").read_bytes()) for number in numbers(folder)}

    def changed() -> set[int]:
        return {number for number, _ in old ^ contents()}

    def save_slowly(obj: Any, f: Any, *rest: Any, **options: Any) -> None:
        with contextlib.nullcontext(f) if hasattr(f, "write") else open(f, "wb") as file:
            start = file.tell()
            file.write(b"ha")
            file.flush()
            halfway.append(changed())
            file.seek(start)
            file.truncate()
            save_whole(obj, file, *rest, **options)

    def rename(real: Any, source: Any, name: Any, **options: Any) -> None:
        if Path(name).resolve() == target:
            path = Path(source).resolve()
            renamed.append((path.parent == folder, changed(), path.read_bytes()))
            deadline = time.monotonic() + 0.3  # the others have time to return, which they must not
            while time.monotonic() < deadline and not list(folder.glob(f"returned-{done}-*")):
                time.sleep(0.02)
        real(source, name, **options)

    target, old, halfway, renamed = folder / f"step-{done}.pt", contents(), [], []
    dist.barrier()
    patches = (mock.patch(f"os.{name}", functools.partial(rename, getattr(os, name))) for name in ("replace", "rename"))
    with mock.patch("torch.save", save_slowly), next(patches), next(patches):
        saved(work, folder, done)
    content = target.read_bytes() if target.exists() else None
    (folder / f"returned-{done}-{dist.get_rank()}").touch()
    dist.barrier()
    return halfway, [(beside, changed, read == content) for beside, changed, read in renamed], content is not None


@whole_at_any_moment.judge
def _(*ranks: Any) -> None:
    for done, by_rank in zip(DONE, zip(*ranks, strict=True), strict=True):
        name = f"step-{done}.pt"
        found = [rank for rank, (halfway, *_) in enumerate(by_rank) for _ in halfway]
        expect(found == [0], f"the ranks that call torch.save: yours {found}, wanted [0]", "which ranks write?")
        halfway, renamed, _ = by_rank[0]
        for changed in (*halfway, *(changed for _, changed, _ in renamed)):
            told = f"{name} is not ready yet, and checkpoints with these numbers are new, changed or gone: {changed}"
            expect(not changed, told, "the job is killed between two of your lines: what is in the folder then?")
        hint = "which operation gives a file its name, with all of its contents, in one moment?"
        expect(bool(renamed), f"{name} does not get its name by a rename", hint)
        for beside, _, whole in renamed:
            expect(beside, "the unfinished file lies in another folder", "what if that folder is on another disk?")
            expect(whole, f"{name} gets its name when it is not whole yet")
        there = [is_there for *_, is_there in by_rank]
        told = f"{name} is there when save() returns, by rank: yours {there}, wanted {[True] * RANKS}"
        expect(all(there), told, "which ranks come to the line where they wait, and what has rank 0 done then?")


BEFORE = ([], [9, 10], [101], [8, 50, 99, 100, 150, 1000], [1, 2, 3, 50])  # step 100 is saved


@check(
    "the last two are kept, and the new one is one of them",
    "which numbers can be in the folder when 100 is saved?",
)
def two_kept(work: ModuleType) -> object:
    join()
    seen = []
    for case, there in enumerate(BEFORE):
        folder = make_folder(f"job-{case}")
        for name in ("notes.txt", *(f"step-{number}.pt" for number in there)):
            (folder / name).write_text("something")
        saved(work, folder, 100)
        seen.append((numbers(folder), (folder / "notes.txt").exists()))
    return seen


@two_kept.judge
def _(seen: Any) -> None:
    for there, (found, has_notes) in zip(BEFORE, seen, strict=True):
        wanted = [*[number for number in there if number < 100][-1:], 100]
        told = f"checkpoints {there} were there, and 100 is saved: yours {found}, wanted {wanted}"
        expect(found == wanted, told)
        expect(has_notes, "notes.txt in the same folder is removed", "which files are checkpoints?")


MADE = ((3, 3), (5, 17))  # the steps that were made, and the number that is saved


@check(
    "weights, momentum, rate and the number of steps come back in every rank",
    "which parts does a training have, and what does the state of each part hold?",
    ranks=RANKS,
)
def comes_back(work: ModuleType) -> object:
    rank, seen = join(), []
    for steps, done in MADE:
        folder = make_folder(f"job-{done}")
        training, again = saved(work, folder, done, steps), make_training(work, 1 + rank, norm=True)
        dist.barrier()
        seen.append((work.load_latest(folder, again), future(training), future(again)))
    return seen


def future(training: Any) -> list[tuple[float, Any]]:
    """The rate and the weights, now and after each of three more steps."""
    seen = []
    for _ in range(4):
        seen.append((training.optimizer.param_groups[0]["lr"], weights(training)))
        make_step(training)
    return seen


@comes_back.judge
def _(*ranks: Any) -> None:
    for rank, seen in enumerate(ranks):
        for (_, done), (found, *futures) in zip(MADE, seen, strict=True):
            told = f"rank {rank}: the number of steps: yours {found}, wanted {done}"
            expect(found == done, told, "what does load_latest return?")
            for later, ((rate, saved), (new_rate, loaded)) in enumerate(zip(*futures, strict=True)):
                told = f"rank {rank}, {later} step(s) after loading"
                hint = "which part sets the rate, and what must it know?"
                expect(rate == new_rate, f"{told}: the rate: yours {new_rate:g}, wanted {rate:g}", hint)
                hint = "what does the optimizer keep from one step to the next?" if later else ""
                hint = "which ranks load which parts?" if rank else hint
                expect(saved == loaded, f"{told}: the weights and averages are not those of the saved training", hint)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "cut off": lambda whole: whole[: len(whole) // 2],
    "without its end": lambda whole: whole[:-30],
    "full of zeros": lambda whole: bytes(len(whole)),
    "a text": lambda whole: b"disk quota exceeded\n" * 9,
}
# The checkpoints in each folder.
FOLDERS: list[dict[int, str]] = [
    {},
    {3: "empty"},
    {9: "whole", 10: "whole"},
    *({9: "whole", 10: "whole", 11: damage} for damage in DAMAGES),
    {9: "whole", 10: "a text", 11: "empty"},
]


@check(
    "the latest whole checkpoint is taken; if there is none, training starts from the beginning",
    "which kinds of errors can torch.load raise? what if there is no checkpoint at all?",
)
def latest_whole(work: ModuleType) -> object:
    join()
    files, states, seen = {}, [(0, weights(make_training(work, 3, norm=True)))], []
    for done in (9, 10):
        states.append((done, weights(saved(work, make_folder("made"), done, steps=done))))
        files[done] = Path("made", f"step-{done}.pt").read_bytes()
    for case, there in enumerate(FOLDERS):
        folder, training = make_folder(f"job-{case}"), make_training(work, 3, norm=True)
        for name in OTHER_FILES:
            (folder / name).write_bytes(DAMAGES["cut off"](files[9]))
        for number, state in there.items():
            content = files[number] if state == "whole" else DAMAGES[state](files[9])
            (folder / f"step-{number}.pt").write_bytes(content)
        seen.append((work.load_latest(folder, training), weights(training), numbers(folder)))
    return states, seen


@latest_whole.judge
def _(seen: Any) -> None:
    states = dict(seen[0])
    for there, (found, values, left) in zip(FOLDERS, seen[1], strict=True):
        told = ", ".join(f"step-{number}.pt is {state}" for number, state in there.items()) or "no checkpoint"
        wanted = max((number for number, state in there.items() if state == "whole"), default=0)
        hint = "which file is tried after one that can't be read, and whose number is returned?"
        expect(found == wanted, f"{told}: the number of steps: yours {found}, wanted {wanted}", hint)
        expect(values == states[wanted], f"{told}: the weights are not those after {wanted} steps", hint)
        told += f": the checkpoints afterwards: yours {left}, wanted {[*there]}"
        expect(left == [*there], told, "must a file be removed here?")


# --- The training ---

PLANS = ((13, 3, 4, 0), (12, 3, 4, 5), (5, 2, 8, 1), (7, 2, 1, 2), (21, 2, 8, 3))  # examples, epochs, batch size, seed


def left(work: ModuleType, done: int, length: int, epochs: int, batch_size: int, seed: int) -> list[list[int]]:
    """The batches after `done` steps."""
    return [list(map(int, batch)) for batch in work.batches(length, work.Plan(epochs, batch_size, 5, seed), done)]


@check(
    "the batches after k steps are those of a whole training",
    "after k steps: in which epoch is it, how many of its batches are done, and which epoch is the last one?",
)
def same_batches(work: ModuleType) -> object:
    state, seen = torch.get_rng_state(), []
    for plan in PLANS:
        whole = left(work, 0, *plan)
        seen.append((whole, [left(work, done, *plan) for done in range(1, len(whole) + 1)]))
    return seen, torch.equal(state, torch.get_rng_state())


@same_batches.judge
def _(seen: Any) -> None:
    for (length, epochs, batch_size, _), (whole, later) in zip(PLANS, seen[0], strict=True):
        told = f"{length} examples, {epochs} epochs, batches of {batch_size}"
        sizes = [len(batch) for batch in whole]
        wanted = [min(batch_size, length - first) for first in range(0, length, batch_size)] * epochs
        hint = "how many batches does an epoch have, and which one may be smaller?"
        expect(sizes == wanted, f"{told}: their sizes: yours {sizes}, wanted {wanted}", hint)
        for done, found in enumerate(later, start=1):
            same_sizes = [len(batch) for batch in found] == sizes[done:]
            hint = "does the order of an epoch depend on where training goes on?" if same_sizes else ""
            yours, wanted = (f"{len(rest)} batches, {str(rest[:2])[:-1]}" for rest in (found, whole[done:]))
            expect(found == whole[done:], f"{told}, after {done} steps: yours {yours}, wanted {wanted}", hint)
    expect(seen[1], "other random numbers of the program change", "whose random numbers does randperm draw?")


SEEDS = (0, 12347, 77)  # no round numbers: seed + 1000 * epoch is right too


@check("every epoch has all examples, in its own order", "what does the seed of the generator depend on?")
def orders(work: ModuleType) -> object:
    return [left(work, 0, 50, 4, 16, seed) for seed in SEEDS]


@orders.judge
def _(seen: Any) -> None:
    earlier: list[list[int]] = []
    for seed, batches in zip(SEEDS, seen, strict=True):
        orders = [sum(batches[first : first + 4], []) for first in range(0, 16, 4)]
        whole = all(sorted(order) == list(range(50)) for order in orders)
        expect(whole, "an epoch does not have each of the 50 examples once")
        expect_new_orders(orders)
        expect(not any(order in earlier for order in orders), f"seed {seed} has an order of another seed")
        earlier += orders


# A job is `save_every`, and for each of its starts what comes, and before which step.
SIGNAL = [f"signal to rank {rank}" for rank in range(RANKS)]
Start = dict[str, int]
Job = tuple[int, list[Start]]


def run(work: ModuleType, jobs: Sequence[Job]) -> object:
    """For each start of each job what this rank sees: its steps, the status, the checkpoints after it, the weights."""
    rank = join()
    return [
        run_once(work, make_folder(f"job-{case}"), save_every, start.get(SIGNAL[rank]), start.get("killed"))
        for case, (save_every, starts) in enumerate(jobs)
        for start in starts
    ]


def run_once(work: ModuleType, folder: Path, save_every: int, signal_at: int | None, killed_at: int | None) -> object:
    training = make_training(work, seed=1 if numbers(folder) else 0)  # 1: other weights than in the checkpoint
    steps: list[int] = []

    def before_step(done: int) -> None:
        steps.append(done)
        if done == killed_at:
            raise Killed
        if done == signal_at:
            signal.raise_signal(SIGNALS[done % 2])

    try:
        status = work.train(training, IMAGES, LABELS, work.Plan(EPOCHS, BATCH_SIZE, save_every, 0), folder, before_step)
    except (Killed, SystemExit) as error:
        status = repr(error)
    dist.barrier()  # rank 0 may remove files after the others have returned
    return steps, status, numbers(folder), weights(training)


def right(start: Start, save_every: int, kept: list[int]) -> tuple[list[int], int | str, list[int]]:
    """The steps, the status and the checkpoints of a right job that is started with the checkpoints `kept`."""
    steps = []
    for step in range(kept[-1] if kept else 0, LAST):
        steps.append(step)
        if start.get("killed") == step:
            return steps, repr(Killed()), kept
        done, interrupted = step + 1, step in start.values()
        if interrupted or done % save_every == 0 or done == LAST:
            kept = [*kept, done][-2:]
        if interrupted and done < LAST:
            return steps, 143, kept
    return steps, 0, kept


def expect_right(jobs: Sequence[Job], *ranks: Any) -> None:
    for rank, seen in enumerate(ranks):
        whole, starts_seen = seen[0][-1], iter(seen)  # the first start of the first job is not interrupted
        for save_every, starts in jobs:
            told, kept = f"rank {rank}, save_every={save_every}", []
            for start in starts:
                coming = " and ".join(f"{what} before step {step}" for what, step in start.items())
                told += f"; start: {coming or 'no signal'}"
                steps, status, kept = right(start, save_every, kept)
                found_steps, found_status, there, values = next(starts_seen)
                expect(found_steps == steps, f"{told}: the steps: yours {found_steps}, wanted {steps}")
                hint = "after which steps must there be a checkpoint, and from where are the steps counted?"
                expect(there == kept, f"{told}: the checkpoints: yours {there}, wanted {kept}", hint)
                exits = str(found_status).startswith("SystemExit")
                expect(not exits, f"{told}: train raises {found_status}", "who ends the program: train or its caller?")
                hint = "which status says that work is left, and after which step is none left?"
                expect(found_status == status, f"{told}: the status: yours {found_status}, wanted {status}", hint)
                hint = "which values does a step read, besides the weights?"
                expect(status != 0 or values == whole, f"{told}: the weights are not those of a whole training", hint)


WHOLE: Job = (5, [{}, {}])  # and started again when it is finished
ALONE: list[Job] = [
    WHOLE,
    *((5, [{SIGNAL[0]: step}, {}]) for step in range(LAST)),
    (100, [*({SIGNAL[0]: step} for step in (2, 3, 4, 9)), {}]),
    *((every, [{"killed": step}, {}]) for every, step in ((5, 3), (5, 11), (3, 7), (100, 11))),
]


@check(
    "after a signal, or killed without one, it goes on and ends with the same weights",
    "in which steps does it look for a signal? from which step does it go on?",
)
def goes_on(work: ModuleType) -> object:
    return run(work, ALONE)


@goes_on.judge
def _(seen: Any) -> None:
    expect_right(ALONE, seen)


SIGNALLED: list[Start] = [{SIGNAL[2]: 1}, {SIGNAL[1]: 6, SIGNAL[2]: 7}, {SIGNAL[0]: 9}, dict.fromkeys(SIGNAL, 3)]
TOGETHER = [WHOLE, *((5, [start, {}]) for start in SIGNALLED)]


@check(
    "all ranks end after the same step",
    "does every rank make the same calls in each step, whether it has received a signal or not?",
    ranks=RANKS,
    seconds=10,
)
def end_together(work: ModuleType) -> object:
    return run(work, TOGETHER)


@end_together.judge
def _(*ranks: Any) -> None:
    expect_right(TOGETHER, *ranks)
