"""What a person sees while implementations run: bars on a terminal, plain lines elsewhere."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from common.results import MetricsLine, PlanLine, StepLine


class LiveView:
    """One line for each implementation, from its metrics. Used as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description:<4}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._name = ""
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

    def start(self, name: str) -> None:
        """The run of implementation `name` begins."""
        self._name = name
        self._started = time.monotonic()
        self._task = self._bars.add_task(name, total=None, state="starting")
        self._plain("starting")

    def see(self, line: MetricsLine) -> None:
        """Takes a line of its metrics."""
        if isinstance(line, PlanLine):
            self._num_epochs = line.num_epochs
            self._bars.update(self._task, total=line.total_steps)
        elif isinstance(line, StepLine):
            self._bars.update(self._task, completed=line.step, state=f"step {line.step:,}  loss {line.loss:.4f}")
        else:
            state = f"epoch {line.epoch}/{self._num_epochs}  accuracy {line.test_accuracy:.2%}"
            self._bars.update(self._task, state=state)
            self._plain(f"{state}  test loss {line.test_loss:.4f}")

    def end(self, failure: str | None) -> None:
        """The run is over."""
        self._bars.stop_task(self._task)
        state = "done" if failure is None else f"failed: {failure}"
        self._bars.update(self._task, state=state)
        self._plain(f"{state} after {time.monotonic() - self._started:.1f} s")

    def _plain(self, text: str) -> None:
        if not self._console.is_terminal:
            self._console.print(f"{self._name}: {text}", soft_wrap=True)
