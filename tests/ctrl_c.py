"""Presses Ctrl-C at given moments of a program and checks what the program leaves behind."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass

import psutil
from conftest import start_process


@dataclass(frozen=True)
class Ended:
    """How a program ended.

    Attributes:
      status: its exit status, negative for a signal.
      pressed: how often Ctrl-C was pressed before its end.
      seconds: from the last Ctrl-C until all its processes had ended.
      told: a summary of all this with the whole output, for the message of a failed test.
    """

    status: int
    out: str
    err: str
    pressed: int
    seconds: float
    told: str

    def lines(self, program):
        """The lines on standard error that begin with `program`: the program itself wrote them."""
        return [line for line in self.err.splitlines() if line.startswith(program)]


def press_ctrl_c(command, pauses, temporary, cwd, **environment):
    """Starts a program and presses Ctrl-C after each pause. Like a terminal, it signals all processes of the program.

    Fails if a process or a file in `temporary` is left, or if the program prints a stack trace.

    Args:
      pauses: the seconds before each Ctrl-C.
      temporary: the folder for temporary files of the program; this function creates it.
    """
    temporary.mkdir()
    process = start_process(command, cwd, TMPDIR=str(temporary), **environment)
    family, pressed = [], 0
    for pause in pauses:
        with suppress(subprocess.TimeoutExpired):
            process.wait(pause)
            break
        with suppress(psutil.NoSuchProcess):
            family += [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        os.killpg(process.pid, signal.SIGINT)
        pressed += 1
    began = time.monotonic()
    out, err = process.communicate(timeout=60)
    _, alive = psutil.wait_procs(family, timeout=10)
    seconds = time.monotonic() - began
    told = f"{pressed} times after {pauses} seconds: status {process.returncode}\n{out}\n{err}"
    print(told)
    assert not alive and "Traceback" not in err, told
    assert not [path for path in temporary.rglob("*") if path.is_file()], told
    return Ended(process.returncode, out, err, pressed, seconds, told)
