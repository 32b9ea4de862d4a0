"""Where the runs of a comparison are made: on this machine, or on those of a cluster. An adapter for each.

All of them run programs, each a command line and a run folder, and tell how each ended; see `Launcher`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from common.record.results import MetricsLine
from comparison.program import Ended, Program

# Programs that run one after the other on the same machine, as what is compared in pairs should.
Group = Sequence[Program]


class Follower(Protocol):
    """Who wants to know how it goes."""

    def started(self, program: Program) -> None: ...

    def see(self, program: Program, line: MetricsLine) -> None:
        """Takes each line of its metrics, soon after it was written."""

    def ended(self, program: Program, ended: Ended) -> None:
        """Called as soon as it has ended, however that was."""


class Launcher(Protocol):
    """Runs programs.

    Attributes:
      place: empty where that is done by this machine; else what names the others: `slurm --partition=NAME`.
    """

    @property
    def place(self) -> str: ...

    def run(self, groups: Sequence[Group], at_once: int, timeout: float, follower: Follower) -> None:
        """Runs all programs to their ends. Being interrupted ends those that run.

        Args:
          at_once: groups that may run at a time on one machine; 1 for what is timed.
          timeout: seconds that a program may take; then it is ended, and has failed.

        Raises:
          UserError: nothing can be started, of whatever program.
        """


@dataclass(frozen=True)
class Quietly:
    """See `Follower`: waits for the ends alone."""

    on_end: Callable[[Path, str | None], None]

    def started(self, program: Program) -> None:
        pass

    def see(self, program: Program, line: MetricsLine) -> None:
        pass

    def ended(self, program: Program, ended: Ended) -> None:
        self.on_end(program.run_dir, ended.failure)
