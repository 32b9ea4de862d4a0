"""Checks of a student's work: what a check is, and how one is run: in processes of its own, within a time limit.

An activity is a folder with a page (README.md), an exercise with gaps, its solution, checks (check.py) and the mistakes
that these must catch (wrong.py).
"""

import importlib.util
import multiprocessing
import os
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import Literal, NamedTuple

FOLDER = Path(__file__).resolve().parent
LIMIT_SECONDS = 20.0
GRACE_SECONDS = 2.0  # for the other ranks to tell what they saw, when one has failed

Status = Literal["passed", "FAILED", "open"]


class Seen(NamedTuple):
    """How a check went, and what was seen where it has not passed.

    Of what several ranks have seen the least vague tells most: a gap explains what follows from it, what a check has
    seen explains errors elsewhere, and these explain who waits for ever.
    """

    status: Status
    what: str = ""
    vague: int = 0


class NotPassedError(Exception):
    """What was seen, in a sentence, when it is not what is wanted."""


def expect(condition: bool, seen: str) -> None:
    """For checks: goes on if `condition` holds; else the check has failed, and the student reads `seen`."""
    if not condition:
        raise NotPassedError(seen)


@dataclass(frozen=True)
class Check:
    """Something that is true of a right answer.

    Attributes:
      title: what is true, as a sentence.
      hint: a question or a pointer that does not give the answer away.
      ranks: in how many processes at once `function` runs. Each finds RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
        MASTER_PORT in the environment, as torchrun sets them.
      seconds: time limit, for work that waits for ever.
      function: is given the student's module, and calls `expect`.
    """

    title: str
    hint: str
    ranks: int
    seconds: float
    function: Callable[[ModuleType], None]


def check(
    title: str, hint: str, ranks: int = 1, seconds: float = LIMIT_SECONDS
) -> Callable[[Callable[[ModuleType], None]], Check]:
    """Makes a `Check` of the function that it decorates."""
    return lambda function: Check(title, hint, ranks, seconds, function)


@dataclass(frozen=True)
class Wrong:
    """A classical mistake, as a change to the solution, and the name of the check that must reject it."""

    mistake: str
    old: str
    new: str
    caught_by: str

    def apply(self, solution: str) -> str:
        if solution.count(self.old) != 1:
            raise ValueError(f"{self.mistake}: {self.old!r} stands {solution.count(self.old)} times in the solution")
        return solution.replace(self.old, self.new)


def load(path: Path) -> ModuleType:
    """The module of a file, under a name of its own, wherever the file lies."""
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
    """Which check of which work a process is to run, and as which of several."""

    checks: Path
    name: str
    work: Path
    rank: int
    world_size: int
    port: int
    log: Path


def _in_child(place: Place, pipe: Connection) -> None:
    log = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    rank, world_size = str(place.rank), str(place.world_size)
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=world_size, LOCAL_WORLD_SIZE=world_size)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(place.port))
    try:
        function = getattr(load(place.checks), place.name).function
        function(load(place.work))
        seen = Seen("passed")
    except NotPassedError as error:
        seen = Seen("FAILED", str(error), vague=1)
    except NotImplementedError as error:
        seen = Seen("open", f"{error} is not filled")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a student's program may raise
        traceback.print_exc()
        seen = Seen("FAILED", _one_line(error, place.work), vague=2)
    pipe.send(seen)
    sys.stdout.flush()
    os._exit(0)  # not waiting for whatever the work has started


def _one_line(error: BaseException, work: Path) -> str:
    """What went wrong and at which line of the work: the innermost one."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(work)]
    if isinstance(error, SyntaxError) and error.filename == str(work):
        lines = [error.lineno]
    where = f" (line {lines[-1]} of {work.name})" if lines else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}{where}"


# --- In the process that checks ---


class Checker:
    """Runs checks in processes forked from one that has imported the framework already."""

    def __init__(self, folder: Path) -> None:
        """`folder`: the activity's."""
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # several processes share the cores
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the checks need several devices: processes on the CPU
        self.checks_file = folder / "check.py"
        module = load(self.checks_file)
        self.checks = {name: value for name, value in vars(module).items() if isinstance(value, Check)}
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(list(module.IMPORTS))

    def run(self, name: str, work: Path) -> Seen:
        """Runs the check `name` on the file `work`."""
        one = self.checks[name]
        with tempfile.TemporaryDirectory(prefix="check-") as folder:
            ranks, port = range(one.ranks), _free_port()
            places = [
                Place(self.checks_file, name, work, rank, one.ranks, port, Path(folder, str(rank))) for rank in ranks
            ]
            return self._first_trouble(places, one.seconds) or Seen("passed")

    def _first_trouble(self, places: list[Place], seconds: float) -> Seen | None:
        """What the checks of all ranks have seen that tells most, or None where all have passed."""
        pipes: dict[Connection, multiprocessing.Process] = {}
        seen: list[Seen] = []
        for place in places:
            receiver, sender = self.context.Pipe(duplex=False)
            process = self.context.Process(target=_in_child, args=(place, sender), daemon=True)
            process.start()
            sender.close()
            pipes[receiver] = process
        try:
            deadline = time.monotonic() + seconds
            while pipes:
                ready = wait(pipes, max(0.0, deadline - time.monotonic()))
                if not ready:
                    seen.append(Seen("FAILED", f"not done after {seconds:g} s: somebody waits for somebody", vague=4))
                    break
                for pipe in ready:
                    process = pipes.pop(pipe)
                    try:
                        seen.append(pipe.recv())
                    except EOFError:
                        process.join()
                        ended = f"the process has ended by itself, with status {process.exitcode}"
                        seen.append(Seen("FAILED", ended, vague=3))
                if seen[-1].status != "passed":
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        finally:
            for process in pipes.values():
                process.kill()
                process.join()
        troubles = [one for one in seen if one.status != "passed"]
        return min(troubles, key=lambda one: one.vague, default=None)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
