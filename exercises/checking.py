"""Checks of a student's work. Each check runs in processes of its own, within a time limit.

A check has two parts. The first observes the work, in the process that runs it, and returns plain data. The second
judges these data, in a process that has never loaded the work. So a work can change what is observed, but not the
verdict.

An activity is a folder with a page (README.md), an exercise with gaps, its solution, and checks (check.py). The checks
must reject the mistakes of wrong.py. They must let the other right answers of right.py pass, if there are any.
"""

import ctypes
import importlib.util
import json
import multiprocessing
import os
import re
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple

from common.platform.errors import describe_signal
from common.platform.machine import num_cores

FOLDER = Path(__file__).resolve().parent
LIMIT_SECONDS = 20.0
LOADING_SECONDS = 60.0
POLL_SECONDS = 0.2
GRACE_SECONDS = 2.0  # for the other ranks to report what they saw, when one rank is done

NOT_DONE = "not done"  # of what a limit of time has ended
LARGEST_FACTOR = 10.0
RAISED, NOT_ENDED = 2, 4  # of Seen.vague: the work has raised an error; the work has not ended, the vaguest

PR_SET_DUMPABLE = 4  # linux/prctl.h

Status = Literal["passed", "FAILED", "open", "not run"]


class Seen(NamedTuple):
    """The result of a check, and what was seen if it has not passed.

    Of several troubles, the least vague one is shown. An open gap (0) explains the failures that it causes. What the
    judge has seen (1) explains errors in other ranks. Errors (2, 3) explain why a rank waits for ever (4).
    """

    status: Status
    what: str = ""
    vague: int = 0


class Observed(NamedTuple):
    """What one rank has observed: the data to be judged, or why there are none."""

    data: Any = None
    trouble: Seen | None = None


def load_factor() -> float:
    """How many times as long as on a quiet machine something may take now: by the threads that want to run."""
    return min(LARGEST_FACTOR, max(1.0, os.getloadavg()[0] / num_cores()))


LOADED = b"loaded"  # sent by a process when it has loaded its modules
MAX_SENT_BYTES = 2**24


class NotPassedError(Exception):
    """A check has not passed. The message is a sentence that says what was seen."""


def expect(condition: bool, seen: str) -> None:
    """For judges: if `condition` is false, the check has failed, and the student reads `seen`."""
    if not condition:
        raise NotPassedError(seen)


@dataclass(frozen=True)
class Check:
    """What a student and the checker need to know of a check. Its title is a statement that every right answer fulfils.

    Attributes:
      title: the statement, as a sentence.
      hint: a question or a pointer that does not give the answer away.
      ranks: the number of processes in which it runs at once. Each has the environment variables RANK, WORLD_SIZE,
        LOCAL_RANK, MASTER_ADDR and MASTER_PORT, as torchrun sets them.
      seconds: time limit, for work that waits for ever.
    """

    title: str
    hint: str
    ranks: int
    seconds: float


class CheckFunctions:
    """The two parts of a check: `observe` takes the student's module; `decide` takes what each rank has observed."""

    def __init__(self, check: Check, observe: Callable[[ModuleType], object]) -> None:
        self.check, self.observe = check, observe
        self.decide: Callable[..., None]  # set by `judge`

    def judge(self, function: Callable[..., None]) -> Callable[..., None]:
        """Marks the function that judges. It gets an argument for each rank, in order, and calls `expect`."""
        self.decide = function
        return function


def check(
    title: str, hint: str, ranks: int = 1, seconds: float = LIMIT_SECONDS
) -> Callable[[Callable[[ModuleType], object]], CheckFunctions]:
    """Marks a function of a check.py as a check: as the part that observes. `NAME.judge` marks the other part.

    What it returns becomes JSON: tensors, arrays and sets become lists; other objects become their repr.
    """
    return lambda observe: CheckFunctions(Check(title, hint, ranks, seconds), observe)


@dataclass(frozen=True)
class Change:
    """A change to the solution: its description in a few words, the old text, and the new text."""

    name: str
    old: str
    new: str

    def apply(self, solution: str) -> str:
        if solution.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.old!r} stands {solution.count(self.old)} times in the solution")
        return solution.replace(self.old, self.new)


@dataclass(frozen=True)
class Right(Change):
    """Another right answer, which all checks must let pass."""


@dataclass(frozen=True)
class Wrong(Change):
    """A classical mistake, and the name of the check that must reject it."""

    caught_by: str


def load(path: Path) -> ModuleType:
    """Loads a file from any folder as a module. The module's name is made from the names of its folder and file."""
    name = f"loaded_{path.parent.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


# --- In the processes that are checked ---


@dataclass(frozen=True)
class Place:
    """The task of one process: the check `name` of the file `checks`, run on `work` in `folder`, as one rank."""

    folder: Path
    checks: Path
    name: str
    work: Path
    rank: int
    world_size: int
    port: int


def _describe(checks: Path, pipe: Connection) -> None:
    """Sends the checks of a file, by the names of their functions, in order."""
    found = {name: check for name, check in vars(load(checks)).items() if isinstance(check, CheckFunctions)}
    if without := [name for name, check in found.items() if not hasattr(check, "decide")]:
        raise ValueError(f"{checks}: without a judge: {', '.join(without)}")
    pipe.send({name: one.check for name, one in found.items()})


def _observe(place: Place, pipe: Connection) -> None:
    """Runs the observing part of a check, and sends what it returns."""
    show_memory(True)
    os.chdir(place.folder)
    os.environ["TMPDIR"] = tempfile.tempdir = str(place.folder)  # which is removed with its contents
    rank, world_size = str(place.rank), str(place.world_size)
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=world_size, LOCAL_WORLD_SIZE=world_size)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(place.port))
    try:
        checks, work = load(place.checks), load(place.work)
        pipe.send_bytes(LOADED)  # the time limit counts from here
        sent = {"data": getattr(checks, place.name).observe(work)}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a student's program may raise
        gap = re.search(r"gap \d+", str(error)) if isinstance(error, NotImplementedError) else None
        sent = {"gap": gap[0]} if gap else {"error": _one_line(error, place.work)}
    pipe.send_bytes(json.dumps(sent, ensure_ascii=False, default=_plain).encode(errors="replace"))
    if "data" in sent:
        time.sleep(GRACE_SECONDS)  # a rank that is slower may still be connecting; when all are done, this one is ended
    os._exit(0)  # without waiting for threads or processes that the work has started


def _plain(value: Any) -> object:
    """A value that JSON does not know, as one that it knows."""
    if hasattr(value, "numpy") and not hasattr(value, "tolist"):  # TensorFlow's
        value = value.numpy()
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value) if isinstance(value, Path) else repr(value)


def _judge(task: tuple[Path, str, list[Any]], pipe: Connection) -> None:
    """Runs the judging part of a check, `(checks, name, data of each rank)`, and sends its verdict."""
    checks, name, data = task
    module = load(checks)
    try:
        getattr(module, name).decide(*data)
        seen = Seen("passed")
    except NotPassedError as error:
        seen = Seen("FAILED", str(error), vague=1)
    except Exception as error:  # noqa: BLE001 - data of any form may come from a work
        text = " ".join(str(error).split())[:200]
        seen = Seen("FAILED", f"what was observed has another form than a right answer: {text}", vague=RAISED)
    pipe.send(seen)


def show_memory(shown: bool) -> None:
    """Lets other programs of this user look into this process and take its descriptors, or forbids it (Linux)."""
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, int(shown), 0, 0, 0):
        raise OSError("prctl(PR_SET_DUMPABLE) has failed")


def _one_line(error: BaseException, work: Path) -> str:
    """An error in one line of text, with the innermost line of the work that led to it."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(work)]
    text = str(error)
    if isinstance(error, SyntaxError) and error.filename == str(work):
        lines, text = [error.lineno], error.msg
    where = f" (line {lines[-1]} of {work.name})" if lines else ""
    if text.startswith("in user code"):  # TensorFlow puts the traceback before the error
        text = text.strip().rpartition("\n")[2]
    text = " ".join(text.split())
    return f"{type(error).__name__}: {text[:200]}{where}"


# --- In the process that checks ---


class Checker:
    """Runs checks in processes that are forked from a server, which has already imported the frameworks.

    What the work prints is not shown. The server ends with this process.
    """

    def __init__(self, checks: Path, frameworks: tuple[str, ...]) -> None:
        """`checks`: a check.py; `frameworks`: the packages that it imports."""
        self.path = checks
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([*frameworks, "exercises.data", "exercises.course", "exercises.frozen"])
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # several processes share the cores
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the checks need several devices, and use processes on the CPU
        with _silence():
            forkserver.ensure_running()
        receiver, process = self._start(_describe, self.path)
        try:
            self.checks: dict[str, Check] = receiver.recv()
        except EOFError:
            raise RuntimeError(f"{self.path} can not be loaded") from None
        process.join()

    def _start(self, function: Callable[..., None], argument: object) -> tuple[Connection, BaseProcess]:
        receiver, sender = self.context.Pipe(duplex=False)
        process = self.context.Process(target=function, args=(argument, sender), daemon=True)
        process.start()
        sender.close()
        return receiver, process

    def run(self, name: str, work: Path) -> Seen:
        """Runs the check `name` on the file `work`. Returns the verdict, or the least vague trouble, if any."""
        check, port = self.checks[name], _free_port()
        with tempfile.TemporaryDirectory(prefix="check-") as folder:  # the processes' working directory
            task = Place(Path(folder), self.path, name, work, 0, check.ranks, port)
            started = [self._start(_observe, replace(task, rank=rank)) for rank in range(check.ranks)]
            ranks = _observed_by_all(started, check.seconds)
        trouble = _least_vague([rank.trouble for rank in ranks if rank.trouble])
        if trouble and (trouble.status == "open" or all(rank.trouble for rank in ranks)):
            return trouble
        verdict = self._verdict(name, [rank.data for rank in ranks])
        if trouble is None:
            return verdict
        # What a rank has observed may explain why another one raised an error or waits for ever.
        return verdict if verdict.status == "FAILED" and verdict.vague < RAISED else trouble

    def _verdict(self, name: str, data: list[Any]) -> Seen:
        """Judges what the ranks have observed (None: nothing), after all processes of the work have ended."""
        receiver, process = self._start(_judge, (self.path, name, data))
        try:
            ready = receiver.poll(LOADING_SECONDS * load_factor())
            verdict: Seen | None = receiver.recv() if ready else None
        except EOFError:
            verdict = None
        process.kill()
        process.join()
        return verdict or Seen("not run", "the checker could not judge what was observed")


def _observed_by_all(started: list[tuple[Connection, BaseProcess]], seconds: float) -> list[Observed]:
    """Collects what the processes send, until all have sent a result or the time is over. Then ends all processes.

    `seconds` count from when the last process has loaded its modules, since loading is slow on a busy machine. On such
    a machine they are more, see `load_factor`.

    Returns:
      For each process, in order, what it has observed.
    """
    observed: dict[Connection, Observed] = {}
    pipes = dict(started)
    waits = ": one process waits for another" if len(started) > 1 else ""
    late = Observed(trouble=Seen("FAILED", f"{NOT_DONE} after {seconds:g} s{waits}", vague=NOT_ENDED))
    began, limit = time.monotonic(), LOADING_SECONDS
    try:
        while pipes:
            ready = wait(pipes, POLL_SECONDS)
            if not ready and time.monotonic() - began > limit * load_factor():
                break
            for pipe in ready:
                assert isinstance(pipe, Connection)
                found = _received(pipe, pipes[pipe])
                if found is not None:
                    del pipes[pipe]
                    observed[pipe] = found
                if any(value.trouble for value in observed.values()):
                    began, limit = time.monotonic(), GRACE_SECONDS
                elif found is None:
                    began, limit = time.monotonic(), seconds
    finally:
        for _, process in started:
            process.kill()
            process.join()
    return [observed.get(pipe, late) for pipe, _ in started]


def _least_vague(troubles: list[Seen]) -> Seen | None:
    return min(troubles, key=lambda trouble: trouble.vague, default=None)


def _received(pipe: Connection, process: BaseProcess) -> Observed | None:
    """What a process has observed; None if it has only reported that its modules are loaded."""
    try:
        sent = pipe.recv_bytes(MAX_SENT_BYTES)
        if sent == LOADED:
            return None
        found = json.loads(sent)  # not pickle: a work may have written it
        if "data" in found:
            return Observed(found["data"])
        if "gap" in found:
            return Observed(trouble=Seen("open", f"{found['gap']} is not filled"))
        return Observed(trouble=Seen("FAILED", str(found["error"]), vague=RAISED))
    except (ValueError, TypeError, LookupError, RecursionError):
        return Observed(trouble=Seen("FAILED", "the process has sent something else than a result", vague=3))
    except (EOFError, OSError):
        process.join(GRACE_SECONDS)
        status = process.exitcode
        ended = f"by itself, with status {status}" if not status or status > 0 else f"by {describe_signal(-status)}"
        what = "has closed its connection to the checker" if status is None else f"has ended {ended}"
        return Observed(trouble=Seen("FAILED", f"the process {what}", vague=3))


@contextmanager
def _silence() -> Iterator[None]:
    """A context in which this process, and the processes that are started in it, print to os.devnull."""
    kept = [os.dup(number) for number in (1, 2)]
    with open(os.devnull, "w") as nothing:
        for number in (1, 2):
            os.dup2(nothing.fileno(), number)
    try:
        yield
    finally:
        for number, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, number)
            os.close(copy)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
