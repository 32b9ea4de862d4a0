"""Launchers make the runs of a comparison: on this machine, or on the machines of a cluster.

Each launcher runs programs, which have a command line and a run folder, and reports how they ended; see `Launcher`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from common.record.results import MetricsLine
from comparison.run.program import Ended, Program

# Programs that run one after the other on the same machine, as runs that are compared in pairs should.
Group = Sequence[Program]


class Follower:
    """Receives reports about the programs that a launcher runs. A subclass ignores those that it does not define."""

    def started(self, program: Program) -> None:
        """Called when the program is about to start."""

    def see(self, program: Program, line: MetricsLine) -> None:
        """Called with each line of the program's metrics, soon after it was written."""

    def ended(self, program: Program, ended: Ended) -> None:
        """Called as soon as the program has ended, whether it succeeded or failed."""


class Launcher(Protocol):
    """Runs programs.

    Attributes:
      place: where programs run: empty for this machine, else the launcher and its options: `slurm --partition=NAME`.
    """

    @property
    def place(self) -> str: ...

    def run(
        self, groups: Sequence[Group], at_once: int, timeout: float, follower: Follower, turns: bool = False
    ) -> None:
        """Runs all programs to their ends. An interrupt, such as Ctrl-C, ends the running programs.

        Args:
          at_once: number of groups that may run at the same time on one machine; 1 if programs are timed.
          timeout: seconds after which a program is ended and counts as failed.
          turns: whether the programs of a group train in turns, see `turns.py`; else one runs after the other.

        Raises:
          UserError: no program at all can be started.
        """


@dataclass(frozen=True)
class QuietFollower(Follower):
    """A `Follower` that only reports the ends: it calls `on_end` with the run folder and the failure, if any."""

    on_end: Callable[[Path, str | None], None]

    def ended(self, program: Program, ended: Ended) -> None:
        self.on_end(program.run_dir, ended.failure)
