"""The clock of a run: it times start-up, the training of each epoch, each evaluation, and the steps after warm-up.

The clock is monotonic, and is read after the device has finished. Start-up lasts from the start of the first process to
the end of the first step, or of the first call if a call takes several steps. Start-up, training and evaluation are
timed separately. timeline.py makes sure that every second is counted once.
"""

import math
import time
from collections.abc import Callable

from common.record.monitor import Monitor
from common.record.results import EpochLine
from common.record.timeline import Timeline


class RunClock:
    """The recorder tells it the phases of a run. It also tells the monitor when to measure.

    Attributes:
      startup_seconds: None before the first step.
      epoch_train_seconds: training seconds of each epoch, without the first call.
      eval_seconds: seconds of each evaluation.
      turn_seconds: seconds of the steps that are timed: those after warm-up or, in turns, those of the latest turn.
      waiting_since: when the run last began to wait for its turn.
    """

    def __init__(self, timeline: Timeline, monitor: Monitor | None, synchronize: Callable[[], None]) -> None:
        """See `Recorder`; `monitor` is None in processes that do not measure."""
        self.timeline, self.monitor, self.synchronize = timeline, monitor, synchronize
        self.startup_seconds: float | None = None
        self.epoch_train_seconds: list[float] = []
        self.eval_seconds: list[float] = []
        self.turn_seconds = 0.0
        self.waiting_since, self._phase_before = math.nan, timeline.phase
        self._timing = self._timed_before = False
        self._segment_start = self._timed_start = math.nan
        self._seconds_before = 0.0

    def go_on(self, epochs: list[EpochLine], seconds: float) -> None:
        """Continues from the measurements in a checkpoint; `seconds` are those of the unfinished epoch."""
        self.epoch_train_seconds = [line.train_seconds for line in epochs]
        self.eval_seconds = [line.eval_seconds for line in epochs]
        self._seconds_before = seconds

    def start_epoch(self) -> None:
        """Called for all epochs but the first, which `end_startup` starts."""
        if self.monitor:
            self.monitor.energy.resume()
        self._segment_start = self._timed_start = self.timeline.enter("training")

    def end_startup(self) -> None:
        """Called after the first step."""
        self.synchronize()
        if self.monitor:
            self.monitor.resume()
            self.monitor.energy.resume()
        now = self.timeline.enter("training")
        self.startup_seconds = now - self.timeline.process_start
        self._segment_start = now - self._seconds_before

    def start_timing(self) -> None:
        """Called between two steps; from here on steps are timed, until the run waits for its next turn."""
        self.synchronize()
        self._timing, self._timed_start = True, time.perf_counter()
        self.turn_seconds = 0.0

    def end_training(self) -> None:
        self.synchronize()
        now = self.timeline.enter("between")
        if self.monitor:
            self.monitor.energy.pause()
        self.epoch_train_seconds.append(now - self._segment_start)
        self._add_timed(now)

    def start_waiting(self) -> None:
        """Called after a step or after an evaluation; the time until `end_waiting` counts for neither."""
        self.synchronize()
        self._phase_before = self.timeline.phase
        self.waiting_since = self.timeline.enter("waiting")
        if self._phase_before == "training":
            self._add_timed(self.waiting_since)
        self._timing, self._timed_before = False, self._timing
        if self.monitor:
            self.monitor.energy.pause()
            self.monitor.pause()

    def end_waiting(self, timing: bool = False) -> None:
        """`timing`: whether steps that were timed before the wait are timed again after it."""
        if self.monitor:
            self.monitor.resume()
            if self._phase_before == "training":
                self.monitor.energy.resume()
        now = self.timeline.enter(self._phase_before)
        self._segment_start += now - self.waiting_since
        if timing and self._timed_before:
            self._timing, self._timed_start = True, now

    def _add_timed(self, now: float) -> None:
        if self._timing:
            self.turn_seconds += now - self._timed_start

    def start_evaluation(self) -> None:
        self._segment_start = self.timeline.enter("evaluation")

    def end_evaluation(self, trained: bool) -> None:
        """`trained`: whether this was the evaluation after the last step."""
        self.eval_seconds.append(self.timeline.enter("rest" if trained else "between") - self._segment_start)
        if self.monitor and trained:
            self.monitor.pause()

    def seconds_in_epoch(self) -> float:
        """Training seconds of the current epoch so far."""
        return time.perf_counter() - self._segment_start

    def end(self) -> float:
        """Seconds from the start of the first process until now."""
        return self.timeline.enter("rest") - self.timeline.process_start
