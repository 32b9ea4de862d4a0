"""Turns: the programs of a round are alive together, and compare.py tells each of them when it may train.

compare.py (comparison/run/turns.py) listens at a Unix socket for each program and names it in the environment variable
TURNS_SOCKET. Every process of the program connects. After start-up, after warm-up, and after each turn, all of them
report the step and block in a read, which uses no core, until compare.py answers with the next turn. Without the
variable, or when compare.py has ended, nothing waits.

A name that begins with @ is in Linux's abstract namespace (unix(7)), without a file that could be left behind.
"""

import json
import os
import socket
from contextlib import suppress
from dataclasses import dataclass

SOCKET_VARIABLE = "TURNS_SOCKET"


def socket_address(name: str) -> str:
    """The address of the Unix socket with this name."""
    return "\0" + name[1:] if name.startswith("@") else name


@dataclass(frozen=True)
class Turn:
    """The steps that a program may take before it waits again.

    Attributes:
      cycle: number of the turn, from 1; all programs of the round have one turn in each cycle.
      timed_after: the steps after this one are timed; before it, threads wake up and prefetched batches are used up.
      until: the last step; at or after the end of training for all that is left.
    """

    cycle: int
    timed_after: int
    until: int


class Turns:
    """The connection of one process to compare.py."""

    def __init__(self) -> None:
        name, self.are_taken = os.environ.get(SOCKET_VARIABLE), False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if name is not None:
            with suppress(OSError):  # compare.py has ended, and this process will notice that soon
                self._socket.connect(socket_address(name))
                self.are_taken = True
        self._answers = self._socket.makefile("r")

    def wait(self, done: int, seconds_per_step: float | None, steps_per_call: int) -> Turn | None:
        """Reports step `done` and waits for the next turn. Returns None if there are no more turns.

        Args:
          seconds_per_step: of the steps since the last wait, for the length of the next turns; None if not measured.
          steps_per_call: the most steps of a call that can't be shorter, as in Keras; 1 if calls end where told.
        """
        report = {"step": done, "seconds_per_step": seconds_per_step, "steps_per_call": steps_per_call}
        answer = ""
        with suppress(OSError):
            self._socket.sendall(f"{json.dumps(report)}\n".encode())
            answer = self._answers.readline()
        self.are_taken = bool(answer)
        return Turn(**json.loads(answer)) if answer else None

    def close(self) -> None:
        self._answers.close()
        self._socket.close()
