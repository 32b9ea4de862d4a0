"""Shows the progress while runs are made: as bars on a terminal, as plain lines elsewhere."""

import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from common.record.results import MetricsLine, PlanLine, StepLine
from comparison.jobs import Job
from comparison.store import Run


@dataclass
class _Shown:
    """A run that is being made, with its progress bar."""

    job: Job
    task: TaskID
    started: float = field(default_factory=time.monotonic)
    num_epochs: int = 0


class LiveView:
    """A line for each run that is being made, and one for the whole comparison. Used as a context manager.

    Args:
      total: number of runs, including those that have already ended.
      done: runs that have already ended; the durations of the others are estimated from theirs.
    """

    def __init__(self, console: Console, total: int, done: list[Run]) -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[state]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._total, self._done = total, len(done)
        self._seconds: dict[tuple[str, str], list[float]] = {}
        for run in done:
            key = run.record.name, ",".join(map("=".join, run.record.variant.items()))
            self._seconds.setdefault(key, []).append(run.record.process_seconds)
        self._whole = self._bars.add_task("all runs", total=total, completed=len(done), state="", visible=total > 1)
        self._left: list[Job] = []
        self._running: dict[Path, _Shown] = {}
        self._over: list[TaskID] = []

    def __enter__(self) -> "LiveView":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def more(self, number: int) -> None:
        """Adds `number` runs to the total."""
        self._total += number
        self._bars.update(self._whole, total=self._total)

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def start(self, job: Job, left: list[Job]) -> None:
        """Shows that the run of `job` begins. The jobs in `left` come after it."""
        if self._total > 4:  # many finished runs would fill the screen and hide the current one
            for task in self._over:
                self._bars.update(task, visible=False)
            self._over.clear()
        self._left = left
        self._running[job.path] = _Shown(job, self._bars.add_task(f"{job.title:<10}", total=None, state="starting"))
        self._plain(job, "starting")
        self._tell_time_left()

    def see(self, job: Job, line: MetricsLine) -> None:
        """Shows a line of the run's metrics."""
        shown = self._running[job.path]
        if isinstance(line, PlanLine):
            shown.num_epochs = line.num_epochs
            self._bars.update(shown.task, total=line.total_steps)
        elif isinstance(line, StepLine):
            self._bars.update(shown.task, completed=line.step, state=f"step {line.step:,} loss {line.loss:.3f}")
        else:
            state = f"epoch {line.epoch}/{shown.num_epochs}  accuracy {line.test_accuracy:.2%}"
            self._bars.update(shown.task, state=state)
            if self._total <= 4:
                self._plain(job, f"{state}  test loss {line.test_loss:.4f}")
        self._tell_time_left()

    def end(self, job: Job, run: Run) -> None:
        """Shows that the run of `job` has ended."""
        task = self._running.pop(job.path).task
        self._over.append(task)
        self._seconds.setdefault(_key(job), []).append(run.record.process_seconds)
        self._done += 1
        self._bars.stop_task(task)
        state = "done" if run.record.failure is None else f"failed: {run.record.failure}"
        self._bars.update(task, state=state)
        self._bars.update(self._whole, completed=self._done)
        self._plain(job, f"{state} after {run.record.process_seconds:.1f} s")
        self._tell_time_left()

    def _tell_time_left(self) -> None:
        left = [self._guess(job) for job in self._left]
        running = [self._guess(shown.job) for shown in self._running.values()]
        state = f"{self._done} of {self._total}"
        if (left or running) and None not in left + running:
            now = time.monotonic()
            begun = [now - shown.started for shown in self._running.values()]
            rest = [max(0.0, (guess or 0.0) - passed) for guess, passed in zip(running, begun, strict=True)]
            # Assumes that as many runs as now are always made at the same time.
            seconds = (sum(guess or 0.0 for guess in left) + sum(rest)) / max(1, len(running))
            state += f", {_clock(seconds)} left"
        self._bars.update(self._whole, state=state)

    def _guess(self, job: Job) -> float | None:
        """Estimated seconds of a run: the median over runs of its row and variant, else of its row, else over all."""
        kinds = [
            self._seconds.get(_key(job), []),
            [one for (name, _), all_of in self._seconds.items() if name == job.name for one in all_of],
            [one for all_of in self._seconds.values() for one in all_of],
        ]
        return next((statistics.median(kind) for kind in kinds if kind), None)

    def _plain(self, job: Job, what: str) -> None:
        if self._console.is_terminal:
            return
        which = ""
        if self._total > 4:
            details = [job.variant.name, f"seed {job.seed}", f"round {job.round}", "tuning" if job.tuning else ""]
            which = f" ({', '.join(filter(None, details))})"
        self._console.print(f"{job.title}{which}: {what}", soft_wrap=True)


def _key(job: Job) -> tuple[str, str]:
    return job.name, job.variant.name


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
