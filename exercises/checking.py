"""Checks of a student's work. Each check runs in processes of its own, within a time limit.

An activity is a folder with a page (README.md), an exercise with gaps, its solution, and checks (check.py). The checks
must reject the mistakes of wrong.py. They must let the other right answers of right.py pass, if there are any.
"""

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
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Literal, NamedTuple

from pydantic import TypeAdapter, ValidationError

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

Status = Literal["passed", "FAILED", "open"]


class Seen(NamedTuple):
    """The result of a check, and what was seen if it has not passed.

    Of the results of several ranks, the least vague one is shown. An open gap (0) explains the failures that it causes.
    What a check has seen (1) explains errors in other ranks. Errors (2, 3) explain why a rank waits for ever (4).
    """

    status: Status
    what: str = ""
    vague: int = 0


_SEEN = TypeAdapter(Seen)


def load_factor() -> float:
    """How many times as long as on a quiet machine something may take now: by the threads that want to run."""
    return min(LARGEST_FACTOR, max(1.0, os.getloadavg()[0] / num_cores()))


LOADED = b"loaded"  # sent by a process when it has loaded its modules
MAX_SENT_BYTES = 2**20


class NotPassedError(Exception):
    """A check has not passed. The message is a sentence that says what was seen."""


def expect(condition: bool, seen: str) -> None:
    """For checks: if `condition` is false, the check has failed, and the student reads `seen`."""
    if not condition:
        raise NotPassedError(seen)


@dataclass(frozen=True)
class Check:
    """A statement that is true of every right answer.

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


CheckFunction = Callable[[ModuleType], None]  # takes the student's module, and calls `expect`


def check(
    title: str, hint: str, ranks: int = 1, seconds: float = LIMIT_SECONDS
) -> Callable[[CheckFunction], CheckFunction]:
    """Marks a function of a check.py as a `Check`."""

    def mark(function: CheckFunction) -> CheckFunction:
        function.check = Check(title, hint, ranks, seconds)  # type: ignore[attr-defined]
        return function

    return mark


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
    found = {name: vars(value).get("check") for name, value in vars(load(checks)).items() if callable(value)}
    pipe.send({name: one for name, one in found.items() if isinstance(one, Check)})


def _run_check(place: Place, pipe: Connection) -> None:
    """Runs a check, and sends its result."""
    os.chdir(place.folder)
    os.environ["TMPDIR"] = tempfile.tempdir = str(place.folder)  # which is removed with its contents
    rank, world_size = str(place.rank), str(place.world_size)
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=world_size, LOCAL_WORLD_SIZE=world_size)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(place.port))
    try:
        checks, work = load(place.checks), load(place.work)
        pipe.send_bytes(LOADED)  # the time limit counts from here
        getattr(checks, place.name)(work)
        seen = Seen("passed")
    except NotPassedError as error:
        seen = Seen("FAILED", str(error), vague=1)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a student's program may raise
        if gap := re.search(r"gap \d+", str(error)) if isinstance(error, NotImplementedError) else None:
            seen = Seen("open", f"{gap[0]} is not filled")
        else:
            seen = Seen("FAILED", _one_line(error, place.work), vague=RAISED)
    pipe.send_bytes(json.dumps(seen, ensure_ascii=False).encode(errors="replace"))
    if seen.status == "passed":
        time.sleep(GRACE_SECONDS)  # a rank that is slower may still be connecting; when all are done, this one is ended
    os._exit(0)  # without waiting for threads or processes that the work has started


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
        """Runs the check `name` on the file `work`. Returns the least vague result that is not a pass, if any."""
        one, port = self.checks[name], _free_port()
        with tempfile.TemporaryDirectory(prefix="check-") as folder:  # the processes' working directory
            places = [Place(Path(folder), self.path, name, work, rank, one.ranks, port) for rank in range(one.ranks)]
            seen = _seen_by_all(dict(self._start(_run_check, place) for place in places), one.seconds)
        return _trouble(seen) or Seen("passed")


def _seen_by_all(pipes: dict[Connection, BaseProcess], seconds: float) -> list[Seen]:
    """Collects what the processes send, until all have sent a result or the time is over. Then ends all processes.

    `seconds` count from when the last process has loaded its modules, since loading is slow on a busy machine. On such
    a machine they are more, see `load_factor`.
    """
    seen: list[Seen] = []
    processes = list(pipes.values())
    several = len(pipes) > 1
    began, limit = time.monotonic(), LOADING_SECONDS
    try:
        while pipes:
            ready = wait(pipes, POLL_SECONDS)
            if not ready and time.monotonic() - began < limit * load_factor():
                continue
            if not ready:
                late = f"{NOT_DONE} after {seconds:g} s{': one process waits for another' if several else ''}"
                return [*seen, Seen("FAILED", late, vague=NOT_ENDED)]
            for pipe in ready:
                assert isinstance(pipe, Connection)
                one = _received(pipe, pipes[pipe])
                if one is not None:
                    del pipes[pipe]
                    seen.append(one)
                if _trouble(seen):
                    began, limit = time.monotonic(), GRACE_SECONDS
                elif one is None:
                    began, limit = time.monotonic(), seconds
    finally:
        for process in processes:
            process.kill()
            process.join()
    return seen


def _trouble(seen: list[Seen]) -> Seen | None:
    """The least vague result that has not passed; None if all have passed."""
    return min((one for one in seen if one.status != "passed"), key=lambda one: one.vague, default=None)


def _received(pipe: Connection, process: BaseProcess) -> Seen | None:
    """The result that a process has sent; None if it has only reported that its modules are loaded."""
    try:
        sent = pipe.recv_bytes(MAX_SENT_BYTES)
        return None if sent == LOADED else _SEEN.validate_json(sent)  # not pickle: a work may have written it
    except ValidationError:
        return Seen("FAILED", "the process has sent something else than a result", vague=3)
    except (EOFError, OSError):
        process.join(GRACE_SECONDS)
        status = process.exitcode
        if status is None:
            return Seen("FAILED", "the process has closed its connection to the checker", vague=3)
        ended = f"by itself, with status {status}" if status >= 0 else f"by {describe_signal(-status)}"
        return Seen("FAILED", f"the process has ended {ended}", vague=3)


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
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
