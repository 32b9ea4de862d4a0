"""Shows the tables so far and the progress while runs are made: in place on a terminal, as plain lines elsewhere."""

import math
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from common.record.results import EpochLine, MetricsLine, PlanLine, StepLine
from comparison.numbers import ACCURACY, LOSS
from comparison.plan.jobs import Job
from comparison.run.store import Run

PLAIN_EPOCHS, PLAIN_SECONDS = 10, 60.0  # where there is no terminal: lines for each run; between two lines of the time


class ProgressBars(Progress):
    """Progress bars, and below them the tables of the rounds so far, which may be cut at the end of the screen."""

    tables: Group | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.tables:
            yield self.tables


class LiveView:
    """A line for each run that is being made, and one for the whole comparison. Used as a context manager.

    Args:
      total: number of runs, including those that have already ended.
      done: runs that have already ended; the durations of the others are estimated from theirs.
    """

    def __init__(self, console: Console, total: int, done: list[Run]) -> None:
        self.console = console
        self._bars = ProgressBars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[state]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
            refresh_per_second=2,  # more would take time from the program that trains
        )
        self._total, self._done = total, len(done)
        self._seconds = [run.own_seconds for run in done]
        self._whole = self._bars.add_task("all runs", total=total, completed=len(done), state="", visible=total > 1)
        self._running: dict[Path, tuple[Job, TaskID]] = {}
        self._num_epochs = 0
        self._audit_seconds = 0.0
        self._began, self._done_before = 0.0, 0  # the round that is being made: its time, and the runs before it
        self._told = time.monotonic()

    def __enter__(self) -> "LiveView":
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.tables = None  # the final ones follow
        self._bars.stop()

    def show(self, tables: Group) -> None:
        """Shows the tables of the rounds so far, instead of those before."""
        if self.console.is_terminal:
            self._bars.tables = tables
        else:
            self.console.print(tables)

    def more(self, number: int) -> None:
        """Adds `number` runs to the total."""
        self._total += number
        self._bars.update(self._whole, total=self._total)

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=not self.console.is_terminal)

    def start(self, job: Job) -> None:
        """Shows that the run of `job` begins."""
        if not self._running:
            self._began, self._done_before = time.monotonic(), self._done
        self._running[job.path] = job, self._bars.add_task(f"{job.title:<10}", total=None, state="starting")
        self._plain(job, "starting")
        self._tell_time_left()

    def see(self, job: Job, line: MetricsLine) -> None:
        """Shows a line of the run's metrics."""
        _, task = self._running[job.path]
        if isinstance(line, PlanLine):
            self._num_epochs = line.num_epochs
            self._bars.update(task, total=line.total_steps)
        elif isinstance(line, StepLine):
            self._bars.update(task, completed=line.step, state=f"step {line.step:,} loss {line.loss:.3f}")
        elif isinstance(line, EpochLine):
            accuracy = "" if line.test_accuracy is None else f"  accuracy {line.test_accuracy:{ACCURACY}}"
            state = f"epoch {line.epoch}/{self._num_epochs}{accuracy}"
            self._bars.update(task, state=state)
            if self._total <= 4 and line.epoch % math.ceil(self._num_epochs / PLAIN_EPOCHS) == 0:
                self._plain(job, f"{state}  test loss {line.test_loss:{LOSS}}")
        self._tell_time_left()

    def end(self, job: Job, run: Run) -> None:
        """Shows that the run of `job` has ended."""
        _, task = self._running.pop(job.path)
        self._seconds.append(run.own_seconds)
        self._done += 1
        self._bars.stop_task(task)
        state = "done" if run.record.failure is None else f"failed: {run.record.failure}"
        # Many finished runs would fill the screen and hide the current one.
        self._bars.update(task, state=state, visible=self._total <= 4 or run.record.failure is not None)
        self._bars.update(self._whole, completed=self._done)
        self._plain(job, f"{state} after {run.own_seconds:.1f} s")
        self._tell_time_left()

    def audit(self, title: str, number: int, count: int) -> None:
        """Shows that the audit of step `number` of `count` of a run begins."""
        self._tell(f"auditing {title}, step {number} of {count}")

    def end_audits(self, seconds: float) -> None:
        """Counts the duration of a run's audits for the time left."""
        self._audit_seconds += seconds

    def _tell_time_left(self) -> None:
        """Tells the time left if each run takes as long as the mean of those that have ended, with their audits."""
        state = f"{self._done} of {self._total}"
        if self._seconds and self._done < self._total:
            each = (sum(self._seconds) + self._audit_seconds) / len(self._seconds)
            left = each * (self._total - self._done)
            if self._running:  # those of a round end together
                left = each * (self._total - self._done_before) - (time.monotonic() - self._began)
            state += f", {timedelta(seconds=round(max(0.0, left)))} left"
        self._tell(state, at_once=not self._running)

    def _tell(self, state: str, at_once: bool = False) -> None:
        """Shows the state of all runs; without a terminal, only from time to time unless it is to be `at_once`."""
        self._bars.update(self._whole, state=state)
        now = time.monotonic()
        if not self.console.is_terminal and (at_once or now - self._told > PLAIN_SECONDS):
            self.console.print(f"runs: {state}")
            self._told = now

    def _plain(self, job: Job, what: str) -> None:
        if self.console.is_terminal:
            return
        details = [job.variant.name, f"seed {job.seed}", f"round {job.round}", "rate search" if job.rate_search else ""]
        which = f" ({', '.join(filter(None, details))})" if self._total > 4 else ""
        self.console.print(f"{job.title}{which}: {what}", soft_wrap=True)
