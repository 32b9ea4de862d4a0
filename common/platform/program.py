"""How programs end: quickly and, after an error, with one line for the user instead of a stack trace."""

import atexit
import os
import platform
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process, resource_tracker
from threading import Timer
from types import FrameType
from typing import NoReturn

from common.platform.errors import OutOfMemoryError, Stopped, StoppedAtCheckpoint, UserError, describe_signal
from common.platform.family import join_family, leave_family, wait_for_end_of_family
from common.platform.launch import STARTED_BY, Launch
from common.platform.output import LastingFile, make_output_last

OTHERS_WRITE = 0o002  # permission that no new file gets, whatever the user's umask is
# A reserve for the end of a program that has run out of memory: it is freed first. The blocks are so small that the C
# library keeps them.
RESERVE_BYTES, RESERVE_BLOCKS = 2**15, 64
STOPPING = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
STOP_SIGNALS = (signal.SIGINT, *STOPPING)  # Python itself handles SIGINT, the signal of Ctrl-C


@contextmanager
def as_program(program: str, shown: bool | None = None) -> Iterator[None]:
    """Prints a `UserError` as `PROGRAM: error: MESSAGE` on standard error, and exits with the error's exit status.

    Ctrl-C and other signals that ask the process to end also print one line. Their exit status is 128 + number, as
    shells expect. The process ends when the `with` block ends, see `exit_now`, or when the process that started it
    ends, see `join_family`.

    Args:
      shown: whether this process prints; False for all but one of the processes that raise the same error. Two kinds of
        errors are printed anyway. Each process prints its own out-of-memory error. The first process of each further
        node prints what its node may lack: a file, a device, a connection. None: True for the first process of the run,
        according to the launcher's environment variables.
    """
    make_output_last(program)
    if not os.environ.get("COLUMNS", "80").strip("0"):
        del os.environ["COLUMNS"]  # in a terminal with zero columns nothing would be shown
    os.umask(os.umask(OTHERS_WRITE) | OTHERS_WRITE)
    launch, status, reserve = None, 0, [bytes(RESERVE_BYTES) for _ in range(RESERVE_BLOCKS)]
    try:
        launch = Launch.read()
        shown = launch.is_first if shown is None else shown
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            # Lightning's further replicas end with the first one.
            # If one of them ends earlier, Lightning kills the first one.
            signal.signal(signal.SIGINT, signal.SIG_IGN if launch.started_by == "Lightning" else _stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # see ctrl_c_waits
        take_signals()
        join_family(launch)
        yield
    except UserError as error:
        reserve.clear()
        status = error.exit_status
        alone = launch is not None and launch.is_first_of_further_node and not error.met_by_all
        where = f"on {platform.node()}: " if alone else ""
        if shown is not False or alone or isinstance(error, OutOfMemoryError):
            print(f"{program}: error: {where}{' '.join(str(error).split())}", file=sys.stderr)
    except KeyboardInterrupt:
        if shown is not False and parent_process() is None:  # otherwise the parent process prints
            print(f"{program}: {_ended_by(signal.SIGINT)}", file=sys.stderr)
        status = 128 + signal.SIGINT
    except StoppedAtCheckpoint as stopped:
        if shown is not False:
            ended, again = describe_signal(stopped.number), f"--resume {stopped.checkpoint}"
            print(f"{program}: ended by {ended}; add {again} to continue from there", file=sys.stderr)
        status = stopped.exit_status
    except Stopped as stopped:
        if shown is not False and parent_process() is None:
            print(f"{program}: {_ended_by(stopped.number)}", file=sys.stderr)
        status = stopped.exit_status
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = 1 if isinstance(end.code, str) else end.code or 0
    except Exception as error:
        if _lacks_memory(error):
            reserve.clear()
            told = " ".join(str(error).split()) or type(error).__name__
            print(f"{program}: error: not enough memory; is there a limit, as of ulimit -v? ({told})", file=sys.stderr)
            exit_now(1)
        if _asked:  # compiled code has turned the exception of the signal into an error of its own
            if shown is not False and parent_process() is None:
                print(f"{program}: {_ended_by(_asked[0])}", file=sys.stderr)
            exit_now(128 + _asked[0])
        if shown is False:
            # If the first process has ended, the others get errors from closed connections, which tell nothing new.
            wait_for_end_of_family()
        raise
    exit_now(status)


def _lacks_memory(error: Exception) -> bool:
    """Whether an error, as of loading a library, means that memory has run out."""
    known = ("failed to map segment", "Cannot allocate memory")
    loads = isinstance(error, ImportError | OSError) and any(text in str(error) for text in known)
    return isinstance(error, MemoryError) or loads


def take_signals(again: bool = False) -> None:
    """Makes signals that ask this process to end raise `Stopped` in the main thread; ignored signals stay ignored.

    Args:
      again: whether to replace handlers that other code has installed.
    """
    for number in STOPPING:
        if signal.getsignal(number) == signal.SIG_DFL or (again and signal.getsignal(number) != signal.SIG_IGN):
            signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    if _in_extension(frame):
        Timer(LATER_SECONDS, os.kill, (os.getpid(), number)).start()
        return
    if _holding and _holding[-1].note(number):
        return
    _asked.append(number)
    again = Timer(LOST_SECONDS, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()
    raise _asked_to_end(number)


_asked: list[int] = []  # signals that have asked this process to end
LATER_SECONDS = 0.05  # until the signal is sent again
LOST_SECONDS = 5.0  # if a program has not ended by then, compiled code (as TensorFlow's may) has lost the exception


# Modules written in Python that register classes of compiled code when they are imported. An exception meanwhile aborts
# the process: "terminate called after throwing an instance of 'pybind11::error_already_set'".
ABORTING_MODULES = frozenset({"torch.distributed"})


def _in_extension(frame: FrameType | None) -> bool:
    """Whether a module not written in Python is being imported: some, such as Triton's, abort on an exception."""
    while frame is not None:
        code = frame.f_code
        if code.co_qualname.startswith("ExtensionFileLoader."):
            return True
        if code.co_name == "<module>" and frame.f_globals.get("__name__") in ABORTING_MODULES:
            return True
        frame = frame.f_back
    return False


def _ended_by(number: int) -> str:
    return "interrupted" if number == signal.SIGINT else f"ended by {describe_signal(number)}"


def _asked_to_end(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else Stopped(number)


def signals_as_ctrl_c() -> None:
    """Makes signals that ask this process to end raise KeyboardInterrupt.

    For programs whose child processes are to end first.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


SAME_SECONDS = 1.0  # signals within this time count as one: a terminal and a parent process may both send it


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

    def end(self) -> NoReturn:
        """Ends the program as the signal would have without `hold_signals`."""
        assert self.number is not None
        raise _asked_to_end(self.number)


def serve_pool() -> None:
    """Initializer for the worker processes of a pool: they ignore stop signals and end with the first process.

    The first tasks given to a pool make it start its processes. They must be submitted inside `ctrl_c_waits`. In a
    program that does not use `as_program` this function changes nothing.
    """
    if STARTED_BY not in os.environ:
        return
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    join_family(Launch.read())


@contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """Delays Ctrl-C for processes that are started inside, until they are in `as_program` or `serve_pool`."""
    resource_tracker.ensure_running()  # multiprocessing's; starting it later would unblock signals again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_holding: list[HeldSignal] = []


@contextmanager
def hold_signals() -> Iterator[HeldSignal]:
    """Postpones a signal that asks this process to end, so that the program can end where it can be resumed.

    A second signal ends it at once. After a `StoppedAtCheckpoint` further signals are ignored.
    """
    held = HeldSignal()
    _holding.append(held)
    try:
        yield held
    except StoppedAtCheckpoint:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise
    finally:
        _holding.remove(held)


def exit_now(status: int = 0) -> NoReturn:
    """Ends this process at once; all its output is written, and no temporary file remains.

    A usual exit takes longer. The interpreter searches all objects of a framework for garbage, which takes one to two
    seconds with today's torch, TensorFlow and Lightning. TensorFlow also waits for its iterators' threads.
    """
    # Another signal would interrupt the next lines; torch sends one when the first process has ended.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if status == 0:  # otherwise some exit functions might wait for other processes
        atexit._run_exitfuncs()
    leave_family(failed=status != 0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or int(LastingFile.failed))
