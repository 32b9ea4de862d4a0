"""How a run spends its time: it is in exactly one phase at any moment, so the phases add up to the whole.

The clock is `time.perf_counter`: monotonic, and the same in all processes of a machine.
"""

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal, Self

from common.platform.machine import process_start

# imports: interpreter and libraries, of every process that rank 0 waits for. data: reading and checking it.
# build: network, weights, processes, tracing, compiling, and the first step. training: all steps but the first.
# between: what an epoch does outside both, such as fetching its last losses or making loaders anew; in no speed.
# rest: predictions, files, the end. waiting: for the next turn, while the other programs of the round train.
Phase = Literal["imports", "data", "build", "training", "evaluation", "between", "rest", "waiting"]
PHASES: tuple[Phase, ...] = ("imports", "data", "build", "training", "evaluation", "between", "rest", "waiting")
SHOWN_PHASES = tuple(phase for phase in PHASES if phase != "waiting")  # those that are the run's own


@dataclass
class Timeline:
    """Seconds in each phase so far. Another process on the same machine can receive a timeline and continue it.

    Attributes:
      first_pid: id of the process that the user started.
      process_start: start time of that process.
      seconds: of each phase; of the current one, those until it last began.
      since: when the current phase began.
    """

    first_pid: int
    process_start: float
    seconds: dict[Phase, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    phase: Phase = "imports"
    since: float = 0.0

    @classmethod
    def begin(cls, first_pid: int) -> Self:
        """A timeline in the phase `imports`, from the start of process `first_pid`."""
        started = process_start(first_pid)
        return cls(first_pid, started, since=started)

    @property
    def started(self) -> datetime:
        """Start time of the first process, UTC."""
        return datetime.now(UTC) - timedelta(seconds=time.perf_counter() - self.process_start)

    def enter(self, phase: Phase) -> None:
        """Ends the current phase and begins `phase`."""
        now = time.perf_counter()
        self.seconds[self.phase] += now - self.since
        self.phase, self.since = phase, now

    def seconds_until_now(self, phase: Phase) -> float:
        """Seconds in `phase`, also while it lasts."""
        return self.seconds[phase] + (time.perf_counter() - self.since if self.phase == phase else 0.0)
