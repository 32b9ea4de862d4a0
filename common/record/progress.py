"""What a person sees of a run: a bar on a terminal, plain lines elsewhere."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class TrainingProgress:
    """Shows steps, loss and speed. Silent unless `shown`, which is for one process of a run.

    Used as a context manager, so that the terminal is left in order whatever happens.
    """

    def __init__(self, total_steps: int, num_epochs: int, *, shown: bool) -> None:
        self._console = Console(highlight=False, markup=False, emoji=False, quiet=not shown, soft_wrap=True)
        self._num_epochs = num_epochs
        self._bar = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}  {task.fields[speed]} images/s"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not (shown and self._console.is_terminal),
            transient=True,
        )
        self._task = self._bar.add_task("", total=total_steps, epoch=f"1/{num_epochs}", loss="-", speed="-")

    def __enter__(self) -> "TrainingProgress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def line(self, text: str) -> None:
        self._console.print(text)

    def steps(self, step: int, epoch: int, loss: float, images_per_second: float | None) -> None:
        """All steps up to `step` are done; `loss` is the last one's."""
        speed = "-" if images_per_second is None else f"{images_per_second:,.0f}"
        self._bar.update(
            self._task, completed=step, epoch=f"{epoch}/{self._num_epochs}", loss=f"{loss:.4f}", speed=speed
        )

    def epoch(
        self,
        epoch: int,
        train_loss: float,
        train_accuracy: float,
        test_loss: float,
        test_accuracy: float,
        speed: float | None,
    ) -> None:
        shown = "" if speed is None else f"; {speed:,.0f} images/s"
        self.line(
            f"epoch {epoch:{len(str(self._num_epochs))}}/{self._num_epochs}: loss {train_loss:.4f},"
            f" accuracy {train_accuracy:.2%}; test {test_loss:.4f}, {test_accuracy:.2%}{shown}"
        )
