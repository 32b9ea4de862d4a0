"""The exceptions of the whole program, each with a message of one line for the user, and the names of signals."""

import os
import signal
from pathlib import Path

# The usual cause when one of these signals ends a process.
SIGNAL_MEANINGS = {
    "SIGHUP": "its terminal or connection was closed",
    "SIGINT": "Ctrl-C",
    "SIGILL": "an instruction that the processor does not execute, perhaps one that a virtual machine announces",
    "SIGABRT": "a library gave up; its last lines say why",
    "SIGBUS": "shared memory, or the disk under a mapped file, has run out",
    "SIGKILL": "the system was out of memory, or somebody killed it",
    "SIGSEGV": "memory that is not its own was touched: a defect in compiled code",
    "SIGTERM": "it was asked to end, by somebody or by a scheduler",
}


class UserError(ValueError):
    """An error that the user can fix: a wrong option, a bad file, a machine that lacks a requested feature.

    The message is one line that names the option and its value, and says what would work.
    """

    exit_status = 2
    met_by_all = False  # whether every process of a run raises it, so that only the first one needs to print it


class StoppedAtCheckpoint(BaseException):
    """A signal has asked this process to end; training can continue from a checkpoint that has just been written.

    Not an `Exception`, so that no code catches it by accident.
    """

    exit_status = os.EX_TEMPFAIL  # "temporary failure": the run may be started again

    def __init__(self, number: int, checkpoint: Path) -> None:
        self.number, self.checkpoint = number, checkpoint


class RunError(UserError):
    """A run that was correctly started has failed; for instance, one of its processes has ended before the others."""

    exit_status = 1


class DivergedError(RunError):
    """A training has produced a loss, or a trained network logits, that are not finite; there is no result."""

    met_by_all = True


class FileError(RunError):
    """A file that can't be written: no space, no permission, or its folder no longer exists."""


class OutOfMemoryError(RunError):
    """A device has run out of memory. This may happen in one replica only, so each replica prints the error itself."""


def describe_signal(number: int) -> str:
    """The signal that ended a process, for messages: `signal 4 (SIGILL: an instruction that ...)`."""
    try:
        name = signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
    meaning = SIGNAL_MEANINGS.get(name)
    return f"signal {number} ({name}: {meaning})" if meaning else f"signal {number} ({name})"
