"""Starts and stops the framework's profiler at the right steps, in the process of a run that writes."""

import time
from collections.abc import Callable
from pathlib import Path

from common.platform.files import writing
from common.record.profile import PROFILE_DIR, Profile, Profiler, profiled_steps
from common.spec.batches import Plan


class ProfileTaker:
    """Called after steps; knows when to start and stop the profiler. Does nothing if no steps are to be profiled."""

    def __init__(
        self,
        implementation: str,
        profiler: Profiler | None,
        plan: Plan,
        warmup_steps: int,
        number: int | None,
        synchronize: Callable[[], None],
    ) -> None:
        """`profiler` is None in processes that don't write; `number` of steps are to be profiled, None for none."""
        self._implementation, self._profiler, self._synchronize = implementation, profiler, synchronize
        self._steps = profiled_steps(plan, warmup_steps, number) if number else range(0)
        self._began: float | None = None
        self._first = 0

    def stops(self) -> tuple[int, ...]:
        """The steps after which `look` must be called."""
        return (self._steps.start - 1, self._steps.stop - 1) if self._steps else ()

    def look(self, done: int, run_dir: Path) -> None:
        """Called after step `done`. If a call of several steps ends later than asked for, all of them are profiled."""
        if not self._steps or self._profiler is None or done < self._steps.start - 1:
            return
        if self._began is None:
            folder = run_dir / PROFILE_DIR
            with writing(folder):
                folder.mkdir(exist_ok=True)
            self._synchronize()
            self._profiler.start(folder)
            self._first, self._began = done + 1, time.perf_counter()
        elif done >= self._steps.stop - 1:
            self._synchronize()
            wall = time.perf_counter() - self._began
            operations = self._profiler.stop()
            number = done - self._first + 1
            Profile.make(self._implementation, self._first, number, wall, operations).write(run_dir)
            self._steps = range(0)
