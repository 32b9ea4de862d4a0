"""What is told about the programs of a comparison while they run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.record.results import MetricsLine
from comparison.run.program import Ended, Program


class Follower:
    """Receives reports about programs. A subclass ignores those that it does not define."""

    def started(self, program: Program) -> None:
        """Called when the program is about to start."""

    def see(self, program: Program, line: MetricsLine) -> None:
        """Called with each line of the program's metrics, soon after it was written."""

    def ended(self, program: Program, ended: Ended) -> None:
        """Called as soon as the program has ended, whether it succeeded or failed."""


@dataclass(frozen=True)
class QuietFollower(Follower):
    """A `Follower` that only reports the ends: it calls `on_end` with the run folder and the failure, if any."""

    on_end: Callable[[Path, str | None], None]

    def ended(self, program: Program, ended: Ended) -> None:
        self.on_end(program.run_dir, ended.failure)
