"""How a run spends its time: it is in exactly one phase at any moment, so the phases add up to the whole.

Time in which the process was stopped, as by Ctrl-Z or SIGSTOP, is no time of the run: see `Stops`.
"""

import signal
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Literal, Self

from common.platform.processes import process_start

# imports: interpreter and libraries, of every process that rank 0 waits for. data: reading and checking it.
# build: network, weights, processes, tracing, compiling, and the first step. training: all steps but the first.
# between: what an epoch does outside both, such as fetching its last losses or making loaders anew; in no speed.
# rest: predictions, files, the end. waiting: for the next turn, while the other programs of the round train.
Phase = Literal["imports", "data", "build", "training", "evaluation", "between", "rest", "waiting"]
PHASES: tuple[Phase, ...] = ("imports", "data", "build", "training", "evaluation", "between", "rest", "waiting")
SHOWN_PHASES = tuple(phase for phase in PHASES if phase != "waiting")  # those that are the run's own

BEAT_SECONDS = 0.1
LEAST_SECONDS = 3 * BEAT_SECONDS  # without a beat; the thread may also wait for the interpreter's lock


class Stops:
    """Counts from its creation on how long the process was stopped. Only the main thread may make one.

    The signal SIGCONT tells that the process goes on, and a thread that wakes up ten times a second knows since when it
    was stopped. A suspended machine needs nothing: its monotonic clock stands still meanwhile (clock_gettime(2)).

    Attributes:
      seconds: time in which the process was stopped.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._beat, self._gap = time.perf_counter(), 0.0
        signal.signal(signal.SIGCONT, self._goes_on)
        threading.Thread(target=self._beats, daemon=True).start()

    def _beats(self) -> None:
        while True:
            time.sleep(BEAT_SECONDS)
            self._look()

    def _goes_on(self, number: int, frame: FrameType | None) -> None:
        self._look()
        self.seconds += self._gap
        self._gap = 0.0

    def _look(self) -> None:
        """Notes the latest gap between two beats; called by whichever of both runs first."""
        now = time.perf_counter()
        if now - self._beat > LEAST_SECONDS:
            self._gap = now - self._beat - BEAT_SECONDS / 2
        self._beat = now


@dataclass
class Timeline:
    """Seconds in each phase so far. Another process on the same machine can receive a timeline and continue it.

    Attributes:
      first_pid: id of the process that the user started.
      process_start: start time of that process, on the clock of `time.perf_counter`, which is the same in all processes
        of a machine.
      stops: the stops of this process, whose time is in no phase; None in a process that does not measure.
    """

    first_pid: int
    process_start: float
    seconds: dict[Phase, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    phase: Phase = "imports"
    since: float = 0.0
    stops: Stops | None = None

    @classmethod
    def begin(cls, first_pid: int) -> Self:
        """A timeline in the phase `imports`, from the start of process `first_pid`."""
        started = process_start(first_pid)
        return cls(first_pid, started, since=started)

    @property
    def started(self) -> datetime:
        """Start time of the first process, UTC."""
        return datetime.now(UTC) - timedelta(seconds=time.perf_counter() - self.process_start)

    def now(self) -> float:
        """The time on the run's clock: that of `time.perf_counter`, which stands still while the process is stopped."""
        return time.perf_counter() - (self.stops.seconds if self.stops else 0.0)

    def enter(self, phase: Phase) -> float:
        """Ends the current phase and begins `phase`; returns the time of this change, on the run's clock."""
        now = self.now()
        self.seconds[self.phase] += now - self.since
        self.phase, self.since = phase, now
        return now
