"""What a person sees while runs are made: bars on a terminal, plain lines elsewhere."""

import statistics
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from common.record.results import MetricsLine, PlanLine, StepLine
from comparison.jobs import Job
from comparison.store import Run


class LiveView:
    """A line for the run that is being made, and one for the whole comparison. Used as a context manager.

    Args:
      total: number of runs, those that are there already among them.
      done: runs that are there already; how long they took tells how long others will.
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
        self._job: Job | None = None
        self._task = TaskID(0)
        self._started = 0.0
        self._num_epochs = 0

    def __enter__(self) -> "LiveView":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def start(self, job: Job, left: list[Job]) -> None:
        """The run of `job` begins; those in `left` come after it."""
        if self._job is not None and self._total > 4:
            self._bars.update(self._task, visible=False)  # a screen full of finished runs hides the one that runs
        self._job, self._left = job, left
        self._started = time.monotonic()
        self._task = self._bars.add_task(f"{job.name:<8}", total=None, state="starting")
        self._plain("starting")
        self._tell_time_left()

    def see(self, line: MetricsLine) -> None:
        """Takes a line of its metrics."""
        if isinstance(line, PlanLine):
            self._num_epochs = line.num_epochs
            self._bars.update(self._task, total=line.total_steps)
        elif isinstance(line, StepLine):
            self._bars.update(self._task, completed=line.step, state=f"step {line.step:,} loss {line.loss:.3f}")
        else:
            state = f"epoch {line.epoch}/{self._num_epochs}  accuracy {line.test_accuracy:.2%}"
            self._bars.update(self._task, state=state)
            if self._total <= 4:
                self._plain(f"{state}  test loss {line.test_loss:.4f}")
        self._tell_time_left()

    def end(self, run: Run) -> None:
        """The run is over."""
        assert self._job is not None
        self._seconds.setdefault(_key(self._job), []).append(run.record.process_seconds)
        self._done += 1
        self._bars.stop_task(self._task)
        state = "done" if run.record.failure is None else f"failed: {run.record.failure}"
        self._bars.update(self._task, state=state)
        self._bars.update(self._whole, completed=self._done)
        self._plain(f"{state} after {run.record.process_seconds:.1f} s")
        self._tell_time_left(running=False)

    def _tell_time_left(self, running: bool = True) -> None:
        jobs = [*([self._job] if running and self._job else []), *self._left]
        guesses = [self._guess(job) for job in jobs]
        known = [guess for guess in guesses if guess is not None]
        state = f"{self._done} of {self._total}"
        if jobs and len(known) == len(jobs):
            left = max(0.0, sum(known) - (time.monotonic() - self._started if running else 0.0))
            state += f", {_clock(left)} left"
        self._bars.update(self._whole, state=state)

    def _guess(self, job: Job) -> float | None:
        """How long a run takes: as others of its kind, else as its implementation did, else as any did."""
        kinds = [
            self._seconds.get(_key(job), []),
            [one for (name, _), all_of in self._seconds.items() if name == job.name for one in all_of],
            [one for all_of in self._seconds.values() for one in all_of],
        ]
        return next((statistics.median(kind) for kind in kinds if kind), None)

    def _plain(self, what: str) -> None:
        if self._console.is_terminal or self._job is None:
            return
        job, which = self._job, ""
        if self._total > 4:
            details = [job.variant.name, f"seed {job.seed}", f"round {job.round}", "tuning" if job.tuning else ""]
            which = f" ({', '.join(filter(None, details))})"
        self._console.print(f"{job.name}{which}: {what}", soft_wrap=True)


def _key(job: Job) -> tuple[str, str]:
    return job.name, job.variant.name


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
