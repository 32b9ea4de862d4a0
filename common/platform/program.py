"""How programs end: quickly, and with one line for the user instead of a stack trace where something is wrong."""

import atexit
import os
import platform
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from multiprocessing import parent_process, resource_tracker
from threading import Timer
from types import FrameType
from typing import NoReturn

from common.platform.errors import OutOfMemoryError, Stopped, StoppedAtCheckpoint, UserError, describe_signal
from common.platform.family import join_family, leave_family, wait_for_end_of_family
from common.platform.launch import STARTED_BY, Launch

OTHERS_WRITE = 0o002  # permission that no file is made with, whatever the user's umask is
# For the end of a program whose memory has run out: blocks that are small enough for the C library to keep them.
RESERVE_BYTES, RESERVE_BLOCKS = 2**15, 64
STOPPING = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
STOP_SIGNALS = (signal.SIGINT, *STOPPING)  # Python itself handles the first, Ctrl-C's


@contextmanager
def as_program(program: str, shown: bool | None = None) -> Iterator[None]:
    """Turns a `UserError` into `PROGRAM: error: MESSAGE` on standard error and its exit status.

    Ctrl-C and signals that ask the process to end do so in one line too, with exit status 128 + number as shells
    expect. The process ends with it, see `exit_now`, or with the one that has started it, see `join_family`.

    Args:
      shown: False: no line, for all but one of the processes that meet the same error. But each one tells of memory
        that has run out, and the first one of each node of what its node may lack: a file, a device, a connection.
        None: as a launcher's environment says who this is.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that can't show a letter is no reason to fail
    if not os.environ.get("COLUMNS", "80").strip("0"):
        del os.environ["COLUMNS"]  # a terminal without columns, on which nothing would be shown
    os.umask(os.umask(OTHERS_WRITE) | OTHERS_WRITE)
    launch, status, reserve = None, 0, [bytes(RESERVE_BYTES) for _ in range(RESERVE_BLOCKS)]
    try:
        launch = Launch.read()
        shown = launch.is_first if shown is None else shown
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            # Lightning's further replicas go with the first one; it kills that if one of them has gone before.
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
        if shown is not False and parent_process() is None:  # else that one tells
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
    except Exception:
        if _asked:  # compiled code that was at work has made an error of its own of it
            if shown is not False and parent_process() is None:
                print(f"{program}: {_ended_by(_asked[0])}", file=sys.stderr)
            exit_now(128 + _asked[0])
        if shown is False:
            # Where the first of several processes is gone, the others meet connections that are closed: no news.
            wait_for_end_of_family()
        raise
    exit_now(status)


def take_signals(again: bool = False) -> None:
    """Has `Stopped` raised in the main thread where a signal asks this process to end; one that is ignored stays so.

    Args:
      again: also where somebody else handles it by now.
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


_asked: list[int] = []  # signals that this process was asked by to end
LATER_SECONDS = 0.05  # until the signal is sent again
LOST_SECONDS = 5.0  # in which a program has ended; else compiled code has lost the exception, as TensorFlow's may


def _in_extension(frame: FrameType | None) -> bool:
    """Whether a module that is not written in Python is being imported: at an exception some, as Triton's, abort."""
    while frame is not None:
        if frame.f_code.co_qualname.startswith("ExtensionFileLoader."):
            return True
        frame = frame.f_back
    return False


def _ended_by(number: int) -> str:
    return "interrupted" if number == signal.SIGINT else f"ended by {describe_signal(number)}"


def _asked_to_end(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else Stopped(number)


def signals_as_ctrl_c() -> None:
    """For programs whose children are to end first: signals that ask this process to end raise KeyboardInterrupt."""
    for number in STOP_SIGNALS:
        signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


SAME_SECONDS = 1.0  # signals that come within are one: a terminal and a parent process may both send it


class HeldSignal:
    """A signal that asked this process to end while `hold_signals` was entered.

    Attributes:
      number: None as long as there was none.
    """

    number: int | None = None

    def note(self, number: int) -> bool:
        """False where it has been asked before: it shall not wait any longer."""
        now = time.monotonic()
        if self.number is None:
            self.number, self.since = number, now
        return now - self.since < SAME_SECONDS

    def end(self) -> NoReturn:
        """Ends the program as the signal would have without `hold_signals`."""
        assert self.number is not None
        raise _asked_to_end(self.number)


def serve_pool() -> None:
    """For the processes of a pool, as their initializer: signals are for the first process, and they end with it.

    What makes them start, the first things to do, is to be given to the pool within `ctrl_c_waits`. In a program
    that is not in `as_program` they are as in any pool.
    """
    if STARTED_BY not in os.environ:
        return
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    join_family(Launch.read())


@contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """For processes that are started within: Ctrl-C reaches them in `as_program` or `serve_pool`, and not before."""
    resource_tracker.ensure_running()  # multiprocessing's; where it has to be started, that lets signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_holding: list[HeldSignal] = []


@contextmanager
def hold_signals() -> Iterator[HeldSignal]:
    """A signal that asks this process to end is only noted, for the program to end when it can go on from there.

    With the second one it ends at once. After a `StoppedAtCheckpoint` more of them change nothing.
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
    """Ends this process at once; whatever it had to write is written, and no temporary file is left behind.

    The usual way the interpreter looks through all objects of a framework for garbage before it goes, one to two
    seconds with today's torch, TensorFlow and Lightning, and TensorFlow waits for its iterators' threads.
    """
    # Another one, as torch sends when the first process has gone, would break off what follows.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if status == 0:  # else some might wait for other processes
        atexit._run_exitfuncs()
    leave_family(failed=status != 0)
    with suppress(OSError):  # whoever read it has gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)
