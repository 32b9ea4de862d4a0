"""What can go wrong, in one line for the user, and what ends a process from outside."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

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
    met_by_all = False  # whether every process of a run meets it, and the first one alone needs to tell


class Stopped(BaseException):
    """A signal has asked this process to end. No `Exception`: nobody handles it by accident, as with Ctrl-C's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def exit_status(self) -> int:
        return 128 + self.number  # as shells have it


class StoppedAtCheckpoint(Stopped):
    """The same, and the training can go on from a checkpoint that has just been made."""

    exit_status = os.EX_TEMPFAIL  # "temporary failure": whoever started the run is invited to do so again

    def __init__(self, number: int, checkpoint: Path) -> None:
        super().__init__(number)
        self.checkpoint = checkpoint


def option_name(field: str) -> str:
    """`batch_size` -> `--batch-size`."""
    return "--" + field.replace("_", "-")


class DivergedError(UserError):
    """Training produced a loss that is not finite; no result can be written."""

    exit_status = 1
    met_by_all = True


class ReplicaError(UserError):
    """One of a run's processes has ended before the others: from outside, for want of memory for instance."""

    exit_status = 1


def replica_ended(rank: int, status: int) -> ReplicaError:
    """Of a process that a signal has ended. `status`: as `subprocess` gives it, or as shells do."""
    number = -status if status < 0 else status - 128
    return ReplicaError(f"replica {rank} was ended by {describe_signal(number)}")


@contextmanager
def lost_process_told(lost: Callable[[Exception], bool]) -> Iterator[None]:
    """Turns what a framework says of its connections into a line, for processes that something else has started.

    Args:
      lost: whether an exception says that another process of the run can't be reached any more.

    Raises:
      ReplicaError: instead of such an exception.
    """
    try:
        yield
    except Exception as error:
        if not lost(error):
            raise
        raise ReplicaError(
            "another process of this run has ended or can't be reached; its own output, or its node, may say why"
        ) from None


class FileError(UserError):
    """A file that can't be written: no space, no permission, a folder that is gone."""

    exit_status = 1


class OutOfMemoryError(UserError):
    """A device had no memory left. It may be one replica's alone, which then tells it itself."""

    exit_status = 1


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
