"""Sinks receive the steps and epochs of a run: its files, the terminal, tracking tools (`loggers/`)."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from common.experiment import Experiment
from common.platform.files import read_json_model, writing
from common.platform.launch import Launch
from common.record.profile import PROFILE_FILE, Profile
from common.record.results import METRICS_FILE, EpochLine, PlanLine, RunResult, TurnLine, write_result
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

    def turn(self, turn: TurnLine) -> None:
        """Called at the end of a turn."""

    def finish(self, result: RunResult) -> None:
        """Called when the run has succeeded."""

    def close(self) -> None:
        """Called at the end in any case, also after an error."""


class RunFilesSink(Sink):
    """Writes `metrics.jsonl` during training, each line at once, and `result.json` at the end."""

    def __init__(self, run_dir: Path, implementation: str) -> None:
        self._run_dir, self._path, self._files = run_dir, run_dir / METRICS_FILE, ExitStack()
        self._implementation = implementation

    def start(self, experiment: Experiment) -> None:
        with writing(self._path):
            self._metrics = self._files.enter_context(open(self._path, "wb", buffering=0))  # noqa: SIM115 - until `close`
        plan = experiment.plan
        line = PlanLine(
            kind="plan",
            implementation=self._implementation,
            total_steps=plan.total_steps,
            steps_per_epoch=plan.steps_per_epoch,
            num_epochs=plan.num_epochs,
        )
        self._write(line.model_dump())

    def steps(self, done: int, losses: Sequence[float], images_per_second: float | None) -> None:
        first = done - len(losses) + 1
        self._write(*({"kind": "step", "step": step, "loss": loss} for step, loss in enumerate(losses, first)))

    def epoch(self, epoch: EpochLine, images_per_second: float | None) -> None:
        with writing(self._path):
            self._path.stat()  # fails now if the folder is gone, and not after the last epoch
        self._write(epoch.model_dump())

    def turn(self, turn: TurnLine) -> None:
        self._write(turn.model_dump())

    def finish(self, result: RunResult) -> None:
        write_result(self._run_dir, result)

    def close(self) -> None:
        self._files.close()

    def _write(self, *lines: dict[str, Any]) -> None:
        left = "".join(json.dumps(line) + "\n" for line in lines).encode()
        with writing(self._path):
            while left:  # a disk that is nearly full may accept only a part
                left = left[self._metrics.write(left) :]


class TrainingProgressSink(Sink):
    """Shows what is trained, then loss and speed, then the result: a bar on a terminal, plain lines elsewhere."""

    def __init__(self, title: str, device_name: str, plan: Plan) -> None:
        """`title`: name of the framework."""
        self._title, self._device_name, self._plan = title, device_name, plan
        self._evaluated = "test"
        self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        # mpirun and srun may give a terminal to programs whose output they write to a file.
        shows_bar = self._console.is_terminal and Launch.read().started_by not in ("Open MPI", "Slurm")
        self._bar = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}  {task.fields[speed]} images/s"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not shows_bar,
            transient=True,
        )
        self._task = self._bar.add_task("", total=plan.total_steps, epoch=self._epoch(1), loss="-", speed="-")

    def start(self, experiment: Experiment) -> None:
        config, count = experiment.config, len(experiment.dataset.test_images)
        self._bar.start()
        evaluated = f" and {count:,} test images"
        if config.evaluate_on == "train":
            self._evaluated, evaluated = "training-set", f" images, evaluated on {count:,} of them"
        self._line(
            f"{self._title}: {config.model} on {config.dataset}, {self._plan.train_size:,} training{evaluated}\n"
            f"{describe_batch(config)}, {describe_settings(config)}, {describe_devices(config, self._device_name)}"
        )

    def steps(self, done: int, losses: Sequence[float], images_per_second: float | None) -> None:
        speed = "-" if images_per_second is None else f"{images_per_second:,.0f}"
        epoch = self._epoch(self._plan.epoch_of(done))
        self._bar.update(self._task, completed=done, epoch=epoch, loss=f"{losses[-1]:.4f}", speed=speed)

    def epoch(self, epoch: EpochLine, images_per_second: float | None) -> None:
        shown = "" if images_per_second is None else f"; {images_per_second:,.0f} images/s"
        self._line(
            f"epoch {self._epoch(epoch.epoch)}: loss {epoch.train_loss:.4f}, accuracy {epoch.train_accuracy:.2%};"
            f" {self._evaluated} {epoch.test_loss:.4f}, {epoch.test_accuracy:.2%}{shown}"
        )

    def finish(self, result: RunResult) -> None:
        self._line(
            f"{self._evaluated} accuracy {result.test_accuracy:.2%} ({result.test_correct:,} of"
            f" {result.test_count:,}), {self._evaluated} loss {result.test_loss:.4f}"
        )
        speed = "" if result.images_per_second is None else f", {result.images_per_second:,.0f} images/s"
        train_seconds = sum(result.epoch_train_seconds)
        self._line(f"start-up {result.startup_seconds:.1f} s, training {train_seconds:.1f} s{speed}")
        if result.replicas_differ:
            self._line(f"warning: {result.replicas_differ}")
        if result.config.profile:
            self._show_profile(result.config.run_dir or Path())
        self._line(f"results: {result.config.run_dir}")

    def _show_profile(self, run_dir: Path) -> None:
        profile = read_json_model(Profile, run_dir / PROFILE_FILE)
        self._line(f"profile: {profile.title}")
        for operation in profile.operations:
            milliseconds, calls = profile.milliseconds(operation.seconds), operation.calls / profile.num_steps
            share = profile.share(operation.seconds)
            self._line(f"{share:6.1%} {milliseconds:9.3f} ms {calls:6.1f} calls  {operation.name[:45]}")

    def close(self) -> None:
        """Removes the bar, so that the terminal can be used as usual."""
        self._bar.stop()

    def _line(self, text: str) -> None:
        self._console.print(text)

    def _epoch(self, number: int) -> str:
        """The epoch as it is shown: ` 3/10`."""
        return f"{number:{len(str(self._plan.num_epochs))}}/{self._plan.num_epochs}"
