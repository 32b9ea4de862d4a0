"""Checks of a student's work. Each check runs in processes of its own, within a time limit.

A check has two parts. The first observes the work, in the process that runs it, and returns plain data. The second
judges these data, in a process that has never loaded the work. So a work can change what is observed, but not the
verdict.

An activity is a folder with a page (README.md), an exercise with gaps, its solution, and checks (check.py). The checks
must reject the mistakes of wrong.diff. They must let the other right answers of right.diff pass, if there are any.
"""

import base64
import importlib.util
import json
import linecache
import os
import re
import subprocess
import sys
import weakref
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple

import numpy as np

from common.platform.errors import UserError
from common.platform.machine import num_cores

FOLDER = Path(__file__).resolve().parent
LIMIT_SECONDS = 20.0

NOT_DONE = "not done"  # of what a limit of time has ended
LARGEST_FACTOR = 10.0
RAISED, NOT_ENDED = 2, 4  # of Seen.vague: the work has raised an error; the work has not ended, the vaguest

Status = Literal["passed", "FAILED", "open", "not run"]


class Seen(NamedTuple):
    """The result of a check, and what was seen if it has not passed, perhaps with a hint of its own.

    Of several troubles, the least vague one is shown. An open gap (0) explains the failures that it causes. What the
    judge has seen (1) explains errors in other ranks. Errors (2, 3) explain why a rank waits for ever (4).
    """

    status: Status
    what: str = ""
    vague: int = 0
    hint: str = ""


def load_factor() -> float:
    """How many times as long as on a quiet machine something may take now: by the threads that want to run."""
    return min(LARGEST_FACTOR, max(1.0, os.getloadavg()[0] / num_cores()))


class NotPassedError(Exception):
    """A check has not passed. The message is a sentence that says what was seen."""

    def __init__(self, seen: str, hint: str = "") -> None:
        super().__init__(seen)
        self.hint = hint


def expect(condition: bool, seen: str, hint: str = "") -> None:
    """For judges: if `condition` is false, the check has failed. The student reads `seen`, and the check's hint.

    Args:
      hint: is shown instead of the check's, which would lead elsewhere.
    """
    if not condition:
        raise NotPassedError(seen, hint)


def common_neighbours(order: Sequence[int], other: Sequence[int]) -> float:
    """The share of the pairs that are side by side in one order, either way round, and in the other one, too.

    Of two random orders of n numbers it is about 2 / n; of an order and its shift, its reverse, or itself with each two
    numbers swapped, at least a half.
    """
    pairs, others = ({frozenset(pair) for pair in pairwise(one)} for one in (order, other))
    return len(pairs & others) / max(1, len(pairs))


def expect_new_orders(orders: Sequence[Sequence[int]]) -> None:
    """For judges: each epoch's order of the examples must be drawn anew."""
    for later, order in enumerate(orders):
        for earlier, other in enumerate(orders[:later]):
            expect(list(order) != list(other), f"epochs {earlier} and {later} have the same order")
            alike = f"the orders of epochs {earlier} and {later} are alike: shifted, reversed, or swapped"
            expect(common_neighbours(order, other) < 0.4, alike)


def largest_difference(found: Iterable[Any], wanted: Iterable[Any]) -> float:
    """For judges: the largest difference of two numbers, in two lists of arrays of the same shapes.

    Args:
      found: of numbers that a work has computed.
      wanted: of tensors or arrays. ValueError: they are more or fewer.

    Raises:
      NotPassedError: a shape differs, or a number that was found is not finite. (max() alone can miss NaN.)
    """
    differences = []
    for one, other in zip(found, wanted, strict=True):
        numbers, right = np.array(one, np.float64), np.array(other.tolist(), np.float64)
        expect(numbers.shape == right.shape, f"an array has the shape {numbers.shape} instead of {right.shape}")
        expect(bool(np.isfinite(numbers).all()), "not all numbers are finite: there is nan or inf among them")
        differences.append(float(np.abs(numbers - right).max()))
    return max(differences)


@dataclass(frozen=True)
class Check:
    """What a student and the checker need to know of a check. Its title is a statement that every right answer fulfils.

    Attributes:
      title: the statement, as a sentence.
      hint: a question or a pointer that does not give the answer away.
      ranks: the number of processes in which it runs at once. Each has the environment variables RANK, WORLD_SIZE,
        LOCAL_RANK, MASTER_ADDR, MASTER_PORT and more, as torchrun sets them.
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
    """A change that turns the solution into another right answer or into a wrong one.

    Attributes:
      name: a description in a few words.
      hunks: the old lines and the new lines of each place that changes. The old lines stand in the solution only once.
      caught_by: the check that must reject a wrong answer; None for a right one.
    """

    name: str
    hunks: tuple[tuple[str, str], ...]
    caught_by: str | None = None

    def apply(self, solution: str) -> str:
        text = f"\n{solution}"
        for old, new in self.hunks:
            if (count := text.count(f"\n{old}")) != 1:
                raise ValueError(f"{self.name}: {old!r} stands {count} times in the solution")
            text = text.replace(f"\n{old}", f"\n{new}")
        return text[1:]


def read_changes(path: Path) -> list[Change]:
    """The changes of a wrong.diff or right.diff, in order; none if there is no such file.

    A change is a line `# NAME [CHECK]` (in a right.diff `# NAME`), and its hunks as a diff prints them: lines that
    begin with "-", "+" or a space. `@@` separates two hunks, an empty line two changes. ValueError: something else.
    """
    if not path.exists():
        return []
    changes = []
    for text in path.read_text(encoding="utf-8").strip().split("\n\n"):
        title, _, diff = text.partition("\n")
        found = re.fullmatch(r"# ([^\[]+?)(?: \[(\w+)\])?", title)
        if not found or not diff or bool(found[2]) != (path.stem == "wrong"):
            raise ValueError(f"{path}: {title!r} is not the first line of a change")
        hunks = []
        for hunk in diff.split("\n@@\n"):
            lines = hunk.splitlines()
            if not all(line.startswith((" ", "-", "+")) for line in lines):
                raise ValueError(f"{path}: {title!r}: a line begins neither with a space nor with - or +")
            old, new = ("".join(f"{line[1:]}\n" for line in lines if line[0] in signs) for signs in (" -", " +"))
            hunks.append((old, new))
        changes.append(Change(found[1], tuple(hunks), found[2]))
    return changes


def read_checks(path: Path) -> str:
    """The text of a check.py. In a student's copy of the course it is packed; see student_copy.py."""
    if path.exists():
        return path.read_text(encoding="utf-8")
    return zlib.decompress(base64.b64decode(path.with_suffix(".packed").read_bytes())).decode()


def load(path: Path) -> ModuleType:
    """Loads a file from any folder as a module. The module's name is made from the names of its folder and file."""
    name = f"loaded_{path.parent.name}_{path.stem}"
    if not path.exists():
        text = read_checks(path)
        sys.modules[name] = unpacked = ModuleType(name)
        linecache.cache[str(path)] = len(text), None, text.splitlines(keepends=True), str(path)  # TensorFlow reads it
        exec(compile(text, path, "exec"), vars(unpacked))  # the course's own file
        return unpacked
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


# --- In the process that asks for checks ---


class Checker:
    """Runs checks in processes that are forked from a server, which has already imported the frameworks.

    What the work prints is not shown. The server ends with this process, or when nothing refers to this object.
    """

    def __init__(self, checks: Path, frameworks: tuple[str, ...]) -> None:
        """`checks`: a check.py; `frameworks`: the packages that it imports."""
        self._connection, servers = Pipe()
        environment = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}  # processes share the cores
        environment["CUDA_VISIBLE_DEVICES"] = ""  # the checks need several devices, and use processes on the CPU
        number = servers.fileno()
        server = subprocess.Popen(
            [sys.executable, "-m", "exercises.server", str(number), str(checks), *frameworks],
            cwd=FOLDER.parent,
            env=environment,
            pass_fds=[number],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        servers.close()
        weakref.finalize(self, _end, self._connection, server)
        try:
            described = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError, ValueError):
            raise RuntimeError(f"{checks} can not be loaded") from None
        self.checks = {name: Check(**one) for name, one in described.items()}

    def run(self, name: str, work: Path) -> Seen:
        """Runs the check `name` on the file `work`. Returns the verdict, or the least vague trouble, if any.

        Raises:
          UserError: the server has ended. It is not started again, since processes of the work may be left.
        """
        check = self.checks[name]
        request = {"name": name, "work": str(work), "ranks": check.ranks, "seconds": check.seconds}
        try:
            self._connection.send_bytes(json.dumps(request).encode())
            return Seen(*json.loads(self._connection.recv_bytes()))
        except (EOFError, OSError):
            raise UserError(
                f"{work}: during its check {name} the process that runs the checks has ended: the work has killed it,"
                " has left processes that do not end, or has used up the memory"
            ) from None


def _end(connection: Connection, server: "subprocess.Popen[bytes]") -> None:
    connection.close()  # then the server ends
    server.wait()
