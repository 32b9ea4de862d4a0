"""Measures what else the machine does while a program runs."""

import os
import time
from collections.abc import Sequence

import psutil

from common.platform.machine import cpu_periods
from common.record.monitor import machine_busy_seconds
from common.record.results import TurnLine
from comparison.run.program import Program, RunEnd, now

# A run is disturbed if others used more than BUSY of all the machine's cores, and less than IDLE of them was idle.
BUSY, IDLE = 0.10, 0.25
QUIET_ADVICE = "end other programs, leave them a core (--threads-per-device 1), or see docs/comparison.md"


def load_disturbs(other: float, own: float | None) -> bool:
    """Whether the load of other programs may slow down a run.

    Args:
      other, own: shares of all the machine's cores that other programs and the run have used; None: not known.
    """
    has_room = own is not None and own + other <= 1 - IDLE
    return other > BUSY and not has_room


def quiet(turns: Sequence[TurnLine]) -> list[TurnLine]:
    """The turns that no other program has disturbed."""
    return [turn for turn in turns if not load_disturbs(turn.other_load or 0.0, turn.own_load)]


class LoadMeter:
    """Measures the load of the machine, from the meter's creation until a program has ended."""

    def __init__(self) -> None:
        self._began, self._started = now(), time.monotonic()
        self._busy, self._own, self._periods = machine_busy_seconds(), _own_seconds(), cpu_periods()

    def ended(self, program: Program, failure: str | None) -> RunEnd:
        seconds = time.monotonic() - self._started
        other = machine_busy_seconds() - self._busy - (_own_seconds() - self._own)
        here = not program.starter  # processes started by srun do not count as the program's own
        return RunEnd(
            started=self._began,
            process_seconds=seconds,
            other_load=max(0.0, other / seconds / (os.cpu_count() or 1)) if here else None,
            throttled=self._throttled() if here else None,
            failure=failure,
        )

    def _throttled(self) -> float | None:
        if self._periods is None or (latest := cpu_periods()) is None:
            return None
        periods, stopped = (after - before for after, before in zip(latest, self._periods, strict=True))
        return min(1.0, stopped / periods) if periods > 0 else 0.0


def _own_seconds() -> float:
    """Processor seconds of this process, of its children, and of all their descendants that were waited for."""
    processes = [os.times(), *(child.cpu_times() for child in psutil.Process().children())]
    return sum(sum(times[:4]) for times in processes)
