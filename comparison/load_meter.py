"""Measures what else the machine does while a program runs."""

import os
import time
from contextlib import suppress
from pathlib import Path
from statistics import fmean

from common.platform.limits import cpu_periods
from common.record.monitor import busy_seconds
from comparison.program import Ended, Program, now

STAT = Path("/proc/stat")


class LoadMeter:
    """Measures the load of the machine, from the meter's creation until a program has ended.

    Attributes:
      trains: whether the program has begun to train; runnable threads are counted only from then on.
    """

    def __init__(self) -> None:
        self.trains = False
        self._began, self._started, self._busy, self._own = now(), time.monotonic(), busy_seconds(), _own_seconds()
        self._periods = cpu_periods()
        self._runnable: list[int] = []

    def look(self) -> None:
        """Counts the runnable threads; called repeatedly while the program runs."""
        if self.trains and (runnable := _runnable_threads()) is not None:
            self._runnable.append(runnable)

    def ended(self, program: Program, failure: str | None) -> Ended:
        seconds = time.monotonic() - self._started
        other = busy_seconds() - self._busy - (_own_seconds() - self._own)
        here = not program.starter  # processes started by srun do not count as the program's own
        return Ended(
            started=self._began,
            process_seconds=seconds,
            other_load=max(0.0, other / seconds / (os.cpu_count() or 1)) if here else None,
            runnable_threads=fmean(self._runnable) if self._runnable and here else None,
            throttled=self._throttled() if here else None,
            failure=failure,
        )

    def _throttled(self) -> float | None:
        if self._periods is None or (latest := cpu_periods()) is None:
            return None
        periods, stopped = (after - before for after, before in zip(latest, self._periods, strict=True))
        return min(1.0, stopped / periods) if periods > 0 else 0.0


def _own_seconds() -> float:
    """Processor seconds of this process and of all its descendants that have ended and were waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _runnable_threads() -> int | None:
    """Threads of the whole machine that run or wait for a core, without the caller's; None if not known."""
    with suppress(OSError):
        for line in STAT.read_text().splitlines():
            if line.startswith("procs_running "):
                return max(0, int(line.split()[1]) - 1)
    return None
