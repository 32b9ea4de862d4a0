"""Sinks show the steps and epochs of a run: on the terminal, and in tracking tools (loggers.py)."""

from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from common.experiment import Experiment
from common.platform.files import read_json_model
from common.platform.launch import Launch
from common.record.profile import PROFILE_FILE, Profile
from common.record.results import EpochLine, RunResult
from common.resolve import describe_batch, describe_devices, describe_settings
from common.spec.batches import Plan


class Sink:
    """Base class of sinks; its methods do nothing.

    The methods are called between steps, in every process that has the sink, so they should be quick.
    """

    def start(self, experiment: Experiment) -> None:
        """Called before anything is computed."""

    def steps(self, done: int, losses: Sequence[float], images_per_second: float | None) -> None:
        """Called when losses were fetched: those of the latest steps, the last of which is step `done` (from 1).

        Args:
          images_per_second: speed of the epoch so far.
        """

    def epoch(self, epoch: EpochLine, images_per_second: float | None) -> None:
        """Called after an evaluation; `images_per_second` is the speed of the epoch's training."""

    def finish(self, result: RunResult) -> None:
        """Called when the run has succeeded."""

    def close(self) -> None:
        """Called at the end if `start` has succeeded, also after an error."""


class TrainingProgressSink(Sink):
    """Shows what is trained, then loss and speed, then the result: a bar on a terminal, plain lines elsewhere."""

    def __init__(self, title: str, device_name: str, plan: Plan) -> None:
        """`title`: name of the framework."""
        self._title, self._device_name, self._plan = title, device_name, plan
        self._evaluated = "test"
        self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        # mpirun and srun may give a terminal to programs whose output they write to a file.
        shows_bar = self._console.is_terminal and Launch.read().started_by not in ("Open MPI", "Slurm")
        columns = BarColumn(bar_width=20), MofNCompleteColumn(), "{task.description}", TimeRemainingColumn()
        self._bar = Progress(*columns, console=self._console, disable=not shows_bar, transient=True)
        self._task = self._bar.add_task("", total=plan.total_steps)

    def start(self, experiment: Experiment) -> None:
        config, count = experiment.config, len(experiment.dataset.test_images)
        self._bar.start()
        evaluated = f" and {count:,} test images"
        if config.evaluate_on == "train":
            self._evaluated, evaluated = "training-set", f" images, evaluated on {count:,} of them"
        self._console.print(
            f"{self._title}: {config.network_name} on {config.dataset_name},"
            f" {self._plan.train_size:,} training{evaluated}\n"
            f"{describe_batch(config)}, {describe_settings(config)}, {describe_devices(config, self._device_name)}"
        )

    def steps(self, done: int, losses: Sequence[float], images_per_second: float | None) -> None:
        speed = "" if images_per_second is None else f"; {images_per_second:,.0f} images/s"
        description = f"epoch {self._epoch(self._plan.epoch_of(done))}: loss {losses[-1]:.4f}{speed}"
        self._bar.update(self._task, completed=done, description=description)

    def epoch(self, epoch: EpochLine, images_per_second: float | None) -> None:
        speed = "" if images_per_second is None else f"; {images_per_second:,.0f} images/s"
        trained, tested = f"loss {epoch.train_loss:.4f}", f"{epoch.test_loss:.4f}"
        if epoch.test_accuracy is not None:
            trained, tested = f"{trained}, accuracy {epoch.train_accuracy:.2%}", f"{tested}, {epoch.test_accuracy:.2%}"
        self._console.print(f"epoch {self._epoch(epoch.epoch)}: {trained}; {self._evaluated} {tested}{speed}")

    def finish(self, result: RunResult) -> None:
        speed = "" if result.images_per_second is None else f", {result.images_per_second:,.0f} images/s"
        start_up = "" if result.startup_seconds is None else f"start-up {result.startup_seconds:.1f} s, "
        train_seconds = sum(result.epoch_train_seconds)
        evaluated = f"{self._evaluated} loss {result.test_loss:.4f}"
        if result.test_accuracy is not None:
            right = f"({result.test_correct:,} of {result.test_count:,})"
            evaluated = f"{self._evaluated} accuracy {result.test_accuracy:.2%} {right}, {evaluated}"
        lines = [
            evaluated,
            f"{start_up}training {train_seconds:.1f} s{speed}",
        ]
        if result.replicas_differ:
            lines.append(f"warning: {result.replicas_differ}")
        if result.config.profile:
            assert result.config.run_dir
            lines += read_json_model(Profile, result.config.run_dir / PROFILE_FILE).lines
        self._console.print("\n".join([*lines, f"results: {result.config.run_dir}"]))

    def close(self) -> None:
        """Removes the bar, so that the terminal can be used as usual."""
        self._bar.stop()

    def _epoch(self, number: int) -> str:
        """The epoch as it is shown: ` 3/10`."""
        return f"{number:{len(str(self._plan.num_epochs))}}/{self._plan.num_epochs}"
