"""How programs end: quickly, with one line instead of a stack trace, and with the process that started them."""

import atexit
import ctypes
import io
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from types import FrameType
from typing import NoReturn

import psutil

from common.platform.errors import OutOfMemoryError, StoppedAtCheckpoint, UserError, describe_signal
from common.platform.launch import STARTED_BY, Launch

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
SAME_SECONDS = 1.0  # signals within this time count as one: a terminal and a parent process may both send it
# The other processes wait so long before they end with an error. If it is one that all of them meet, the first one
# prints it: a launcher would end it before, as soon as one of the others has ended.
FIRST_SECONDS = 3.0


class _Own:
    """What a signal finds of this process."""

    program: str | None = None  # its name, if this process prints the line about a signal
    held: dict[int, float] | None = None  # inside `hold_signals`: a signal -> when it arrived, on the monotonic clock


@contextmanager
def as_program(program: str, shown: bool | None = None) -> Iterator[None]:
    """Prints a `UserError` as `PROGRAM: error: MESSAGE` on standard error, and exits with the error's exit status.

    Signals that ask the process to end print one line, too, and end it at once with the status 128 + number, see
    `take_signals`. The process ends with the `with` block, see `exit_now`, or with its starter, see `end_with_starter`.

    Args:
      shown: whether this process prints; False for all but one of the processes that raise the same error. Each process
        prints its own out-of-memory error anyway, and the first process of each further node what its node may lack: a
        file, a device, a connection. None: True for the first process of the run, by the launcher's
        variables; the others then end FIRST_SECONDS later.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # the terminal may lack characters
    waits, alone, status = False, False, 0
    try:
        launch = Launch.read()
        waits, alone = shown is None and not launch.is_first, launch.local_rank == 0 < launch.node
        shown = launch.is_first if shown is None else shown
        if launch.started_by == "Lightning":
            # Further replicas end with the first one. If one of them ends earlier, Lightning kills the first one.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        _Own.program = program if shown else None
        take_signals()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # see ctrl_c_waits
        end_with_starter(launch)
        yield
    except UserError as error:
        status, alone = error.exit_status, alone and not error.met_by_all
        if shown is not False or alone or isinstance(error, OutOfMemoryError):
            where = f"on {platform.node()}: " if alone else ""
            print(f"{program}: error: {where}{' '.join(str(error).split())}", file=sys.stderr)
        elif waits:
            time.sleep(FIRST_SECONDS)
    except MemoryError as error:
        status = OutOfMemoryError.exit_status
        print(f"{program}: error: out of memory: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        end_by_signal(signal.SIGINT)
    except StoppedAtCheckpoint as stopped:
        status = stopped.exit_status
        if shown:
            ended, again = describe_signal(stopped.number), f"--resume {stopped.checkpoint}"
            print(f"{program}: ended by {ended}; add {again} to continue from there", file=sys.stderr)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = 1 if isinstance(end.code, str) else end.code or 0
    except BrokenPipeError:  # its output went to `head`, for example, which has ended
        status = 128 + signal.SIGPIPE
    exit_now(status)


def end_with_starter(launch: Launch) -> None:
    """The kernel kills this process when the process that started it ends: one of this project, or a launcher's.

    A program that a user has started outlives its shell, as usual (nohup).
    """
    pid, _, host = os.environ.get(STARTED_BY, "").partition("@")
    starter = int(pid) if host == platform.node() else None  # srun gives the variable to other nodes, too
    if starter == os.getppid() or launch.world_size is not None:
        end_with_parent()
    if starter is not None and not psutil.pid_exists(starter):
        os._exit(1)  # it has ended before; nobody is left to read a message
    os.environ[STARTED_BY] = f"{os.getpid()}@{platform.node()}"


def end_with_parent() -> None:
    """The kernel kills this process when its parent ends; elsewhere than on Linux it goes on."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # prctl(2): PR_SET_PDEATHSIG, the signal when the parent ends


# --- Signals ---


def _end(number: int, frame: FrameType | None) -> None:
    if _Own.held is None or comes_again(number, _Own.held):
        end_by_signal(number)


def comes_again(number: int, arrived: dict[int, float]) -> bool:
    """Takes note of a signal. Returns whether an earlier one came SAME_SECONDS before it, or more.

    Args:
      arrived: a signal -> when it first arrived, on the monotonic clock.
    """
    now = time.monotonic()
    again = any(now - earlier >= SAME_SECONDS for earlier in arrived.values())
    arrived.setdefault(number, now)
    return again


def take_signals(handler: Callable[[int, FrameType | None], None] | signal.Handlers = _end) -> None:
    """Sets what signals that ask this process to end do: by default they end it. Ignored signals stay ignored.

    With `signal.default_int_handler` they raise KeyboardInterrupt, for a program that has something to end or to keep
    first. Not for one with a framework, whose compiled code may lose the exception, replace it, or abort.
    """
    for number in STOP_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def end_by_signal(number: int) -> NoReturn:
    """Ends this process with a line that names the signal."""
    take_signals(signal.SIG_IGN)  # a terminal and a parent process may both send it, and the line is printed once
    if _Own.program is not None:
        message = "interrupted" if number == signal.SIGINT else f"ended by {describe_signal(number)}"
        with suppress(OSError):
            os.write(2, f"{_Own.program}: {message}\n".encode())  # print may be what the signal has interrupted
    exit_now(128 + number)


@contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """Delays Ctrl-C for processes that are started inside, until they are in `as_program`."""
    resource_tracker.ensure_running()  # multiprocessing's; starting it later would unblock signals again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def hold_signals() -> Iterator[dict[int, float]]:
    """Postpones a signal that asks this process to end, so that the program can end where it can be resumed.

    Yields the signals that have arrived, and when. A second one, SAME_SECONDS later, ends the process at once. After a
    `StoppedAtCheckpoint` further signals are ignored.
    """
    held = _Own.held = {}
    try:
        yield held
    except StoppedAtCheckpoint:
        take_signals(signal.SIG_IGN)
        raise
    finally:
        _Own.held = None


def exit_now(status: int = 0) -> NoReturn:
    """Ends this process at once; all its output is written.

    A usual exit takes longer. The interpreter searches all objects of a framework for garbage, which takes one to two
    seconds with today's torch, TensorFlow and Lightning. TensorFlow also waits for its iterators' threads.
    """
    # Another signal would interrupt the next lines; torch sends one when the first process has ended.
    take_signals(signal.SIG_IGN)
    if status == 0:  # otherwise some exit functions might wait for other processes
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(RuntimeError, OSError):  # a signal has interrupted a write, or nobody reads the output
            stream.flush()
    os._exit(status)
