"""How programs end: quickly, and with one line for the user instead of a stack trace where something is wrong."""

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


class UserError(ValueError):
    """Something the user can mend: an option, a file, a machine that lacks what was asked for.

    The message is one line that names the option and its value and says what would do.
    """

    exit_status = 2


class DivergedError(UserError):
    """Training produced a loss that is not finite; no result can be written."""

    exit_status = 1


class ReplicaError(UserError):
    """One of a run's processes was ended from outside, for want of memory for instance."""

    exit_status = 1


@contextmanager
def whole_program(program: str, shown: bool = True) -> Iterator[None]:
    """Turns a `UserError` into `PROGRAM: error: MESSAGE` on standard error and its exit status.

    Ctrl-C ends in one line too, with exit status 130 as shells expect. Without `shown` there is no line,
    for all but one of the processes that meet the same error.

    The process ends with it, see `leave`.
    """
    status = 0
    try:
        yield
    except UserError as error:
        if shown:
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
    leave(status)


def leave(status: int = 0) -> NoReturn:
    """Ends this process at once; whatever it had to write is written, and if all went well, nothing is left behind.

    The usual way the interpreter looks through all objects of a framework for garbage before it goes, one to two
    seconds with today's torch, TensorFlow and Lightning, and TensorFlow waits for its iterators' threads.
    """
    if status == 0:  # else some might wait for other processes
        atexit._run_exitfuncs()  # TensorFlow's AutoGraph alone leaves a dozen temporary files to be removed by it
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
