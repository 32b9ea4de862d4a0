"""How programs end: quickly, and with one line for the user instead of a stack trace where something is wrong."""

import atexit
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

# What a process mostly died of that was ended by one of these signals.
SIGNAL_MEANINGS = {
    "SIGHUP": "its terminal or connection was closed",
    "SIGINT": "Ctrl-C",
    "SIGILL": "an instruction that the processor does not execute, perhaps one that a virtual machine announces",
    "SIGABRT": "a library gave up; its last lines say why",
    "SIGBUS": "shared memory, or the disk under a mapped file, has run out",
    "SIGFPE": "an integer was divided by zero",
    "SIGKILL": "the system was out of memory, or somebody killed it",
    "SIGSEGV": "memory that is not its own was touched: a defect in compiled code",
    "SIGTERM": "it was asked to end, by somebody or by a scheduler",
}


class UserError(ValueError):
    """Something the user can mend: an option, a file, a machine that lacks what was asked for.

    The message is one line that names the option and its value and says what would do.
    """

    exit_status = 2


def option_name(field: str) -> str:
    """`batch_size` -> `--batch-size`."""
    return "--" + field.replace("_", "-")


class DivergedError(UserError):
    """Training produced a loss that is not finite; no result can be written."""

    exit_status = 1


class ReplicaError(UserError):
    """One of a run's processes was ended from outside, for want of memory for instance."""

    exit_status = 1


class OutOfMemoryError(UserError):
    """A device had no memory left. It may be one replica's alone, which then tells it itself."""

    exit_status = 1


@contextmanager
def as_program(program: str, shown: bool = True) -> Iterator[None]:
    """Turns a `UserError` into `PROGRAM: error: MESSAGE` on standard error and its exit status.

    Ctrl-C ends in one line too, with exit status 130 as shells expect. Without `shown` there is no line,
    for all but one of the processes that meet the same error; of memory that has run out each one tells.

    The process ends with it, see `exit_now`.
    """
    status = 0
    try:
        yield
    except UserError as error:
        if shown or isinstance(error, OutOfMemoryError):
            print(f"{program}: error: {' '.join(str(error).split())}", file=sys.stderr)
        status = error.exit_status
    except KeyboardInterrupt:
        if shown:
            print(f"{program}: interrupted", file=sys.stderr)
        status = 130
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = 1 if isinstance(end.code, str) else end.code or 0
    exit_now(status)


def exit_now(status: int = 0) -> NoReturn:
    """Ends this process at once; whatever it had to write is written, and if all went well, nothing is left behind.

    The usual way the interpreter looks through all objects of a framework for garbage before it goes, one to two
    seconds with today's torch, TensorFlow and Lightning, and TensorFlow waits for its iterators' threads.
    """
    if status == 0:  # else some might wait for other processes
        atexit._run_exitfuncs()  # TensorFlow's AutoGraph alone leaves a dozen temporary files to be removed by it
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def signal_name(number: int) -> str:
    """`SIGILL`; `signal 35` for a number that has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_signal(number: int) -> str:
    """What ended a process, for people: `signal 4 (SIGILL: an instruction that ...)`."""
    name = signal_name(number)
    meaning = SIGNAL_MEANINGS.get(name)
    if name == f"signal {number}":
        return name
    return f"signal {number} ({name}: {meaning})" if meaning else f"signal {number} ({name})"
