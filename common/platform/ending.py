"""How programs end: quickly, with one line for the user instead of a stack trace; and what Ctrl-C and signals do."""

import atexit
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import parent_process, resource_tracker
from types import FrameType
from typing import ClassVar, NoReturn

from common.platform.errors import OutOfMemoryError, StoppedAtCheckpoint, UserError, describe_signal
from common.platform.launch import STARTED_BY, Launch
from common.platform.output import ignore_broken_pipe
from common.platform.processes import join_process_family, leave_process_family

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
SAME_SECONDS = 1.0  # signals within this time count as one: a terminal and a parent process may both send it
CLOSING_SECONDS = 5  # after a signal, for `at_signal`
# The other processes wait so long for their own end before they end with an error. If the first process has ended, they
# get errors from closed connections, which tell nothing new. If it is about to print the error that all of them meet, a
# launcher would end it before, as soon as one of the others has ended.
FIRST_SECONDS = 3.0


class HeldSignal:
    """A signal that asked this process to end while the program was inside `hold_signals`.

    Attributes:
      number: the signal's number; None until a signal arrives.
    """

    number: int | None = None

    def note(self, number: int) -> bool:
        """Stores the signal. Returns False for a second one after SAME_SECONDS: the process must then end at once."""
        now = time.monotonic()
        if self.number is None:
            self.number, self.since = number, now
        return now - self.since < SAME_SECONDS


class _Own:
    """What the end of this process needs.

    Attributes:
      program: the program's name, if this process prints the line about a signal.
      held: set inside `hold_signals`.
      closing: see `at_signal`.
    """

    program: str | None = None
    held: HeldSignal | None = None
    closing: ClassVar[list[Callable[[], object]]] = []


@contextmanager
def as_program(program: str, shown: bool | None = None) -> Iterator[None]:
    """Prints a `UserError` as `PROGRAM: error: MESSAGE` on standard error, and exits with the error's exit status.

    Ctrl-C and other signals that ask the process to end also print one line, and end it at once: no exception passes
    through the `with` block, see `at_signal` and `signals_as_ctrl_c`. Their exit status is 128 + number, as shells
    expect. The process ends when the `with` block ends, see `exit_now`, or when the process that started it ends, see
    `join_process_family`.

    Args:
      shown: whether this process prints; False for all but one of the processes that raise the same error. Two kinds of
        errors are printed anyway. Each process prints its own out-of-memory error. The first process of each further
        node prints what its node may lack: a file, a device, a connection. None: True for the first process of the run,
        according to the launcher's environment variables.
    """
    ignore_broken_pipe()
    if not os.environ.get("COLUMNS", "80").strip("0"):
        del os.environ["COLUMNS"]  # in a terminal with zero columns nothing would be shown
    launch, status = None, 0
    try:
        launch = Launch.read()
        shown = launch.is_first if shown is None else shown
        if launch.started_by == "Lightning":
            # Further replicas end with the first one. If one of them ends earlier, Lightning kills the first one.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        _Own.program = program if shown and parent_process() is None else None  # otherwise the parent process prints
        take_signals()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # see ctrl_c_waits
        join_process_family(launch)
        yield
    except UserError as error:
        status = error.exit_status
        alone = launch is not None and launch.is_first_of_further_node and not error.met_by_all
        where = f"on {platform.node()}: " if alone else ""
        if shown is not False or alone or isinstance(error, OutOfMemoryError):
            print(f"{program}: error: {where}{' '.join(str(error).split())}", file=sys.stderr)
        elif launch is not None and not launch.is_first:
            time.sleep(FIRST_SECONDS)
    except KeyboardInterrupt:
        end_by_signal(signal.SIGINT)
    except StoppedAtCheckpoint as stopped:
        if shown is not False:
            ended, again = describe_signal(stopped.number), f"--resume {stopped.checkpoint}"
            print(f"{program}: ended by {ended}; add {again} to continue from there", file=sys.stderr)
        status = stopped.exit_status
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = 1 if isinstance(end.code, str) else end.code or 0
    except Exception as error:
        if not _lacks_memory(error):
            if shown is False:
                time.sleep(FIRST_SECONDS)
            raise
        message = " ".join(str(error).split()) or type(error).__name__
        print(f"{program}: error: not enough memory; is there a limit, as of ulimit -v? ({message})", file=sys.stderr)
        status = 1
    exit_now(status)


def _lacks_memory(error: Exception) -> bool:
    """Whether an error, as of loading a library, means that memory has run out."""
    known = ("failed to map segment", "Cannot allocate memory")
    loads = isinstance(error, ImportError | OSError) and any(text in str(error) for text in known)
    return isinstance(error, MemoryError) or loads


def _end(number: int, frame: FrameType | None) -> None:
    if _Own.held is None or not _Own.held.note(number):
        end_by_signal(number)


Handler = Callable[[int, FrameType | None], None] | signal.Handlers


def take_signals(handler: Handler = _end) -> None:
    """Sets what signals that ask this process to end do: by default they end it. Ignored signals stay ignored."""
    for number in STOP_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def signals_as_ctrl_c() -> None:
    """Makes signals that ask this process to end raise KeyboardInterrupt.

    For programs that have something to end or to keep first. Not for those with a framework: its compiled code may lose
    the exception, replace it by an error of its own, or abort.
    """
    take_signals(signal.default_int_handler)


def end_by_signal(number: int) -> NoReturn:
    """Ends this process with a line that names the signal; before, it does what `at_signal` asks for."""

    def end(*_: object) -> NoReturn:
        program, _Own.program = _Own.program, None
        if program is not None:
            message = "interrupted" if number == signal.SIGINT else f"ended by {describe_signal(number)}"
            with suppress(OSError):
                os.write(2, f"{program}: {message}\n".encode())  # print may be what the signal has interrupted
        exit_now(128 + number)

    take_signals(signal.SIG_IGN)
    signal.signal(signal.SIGALRM, end)
    signal.alarm(CLOSING_SECONDS)
    for close in [*_Own.closing][::-1]:
        with suppress(Exception):  # the line about the signal says why the program ends
            close()
    end()


@contextmanager
def at_signal(close: Callable[[], object]) -> Iterator[None]:
    """Calls `close` if a signal ends the process inside."""
    _Own.closing.append(close)
    try:
        yield
    finally:
        _Own.closing.remove(close)


def serve_pool() -> None:
    """Initializer for the worker processes of a pool: they ignore stop signals and end with the first process.

    The first tasks given to a pool make it start its processes. They must be submitted inside `ctrl_c_waits`. In a
    program that does not use `as_program` this function changes nothing.
    """
    if STARTED_BY not in os.environ:
        return
    take_signals(signal.SIG_IGN)
    join_process_family(Launch.read())


@contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """Delays Ctrl-C for processes that are started inside, until they are in `as_program` or `serve_pool`."""
    resource_tracker.ensure_running()  # multiprocessing's; starting it later would unblock signals again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def hold_signals() -> Iterator[HeldSignal]:
    """Postpones a signal that asks this process to end, so that the program can end where it can be resumed.

    A second signal ends it at once. After a `StoppedAtCheckpoint` further signals are ignored.
    """
    _Own.held = HeldSignal()
    try:
        yield _Own.held
    except StoppedAtCheckpoint:
        take_signals(signal.SIG_IGN)
        raise
    finally:
        _Own.held = None


def exit_now(status: int = 0) -> NoReturn:
    """Ends this process at once; all its output is written, and no temporary file remains.

    A usual exit takes longer. The interpreter searches all objects of a framework for garbage, which takes one to two
    seconds with today's torch, TensorFlow and Lightning. TensorFlow also waits for its iterators' threads.
    """
    # Another signal would interrupt the next lines; torch sends one when the first process has ended.
    take_signals(signal.SIG_IGN)
    if status == 0:  # otherwise some exit functions might wait for other processes
        atexit._run_exitfuncs()
    leave_process_family()
    for stream in (sys.stdout, sys.stderr):
        with suppress(RuntimeError):  # a signal has interrupted a write
            stream.flush()
    os._exit(status)
