"""Sinks for tracking tools, TensorBoard and Weights & Biases; `--logger` selects them.

Each stores losses, accuracies, learning rate and speed by step, the hyperparameters, and the numbers of the whole run.
A tool's package is imported when a run starts that uses it.
"""

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common.experiment import Experiment
from common.platform.errors import UserError
from common.record.results import CONFIG_FILE, METRICS_FILE, RESULT_FILE, EpochLine, RunResult
from common.record.sinks import Sink
from common.spec.options import LoggerName

PACKAGES: dict[LoggerName, str] = {"tensorboard": "tensorboardX", "wandb": "wandb"}
PROJECT = "one-cnn-three-frameworks"  # of Weights & Biases, unless WANDB_PROJECT names another


def check_loggers(names: Sequence[LoggerName]) -> None:
    """Raises UserError if the package of a tool is not installed; imports none of them."""
    for name in names:
        if importlib.util.find_spec(PACKAGES[name]) is None:
            raise UserError(
                f"--logger {name}: {PACKAGES[name]} is not installed; pip install -r requirements/loggers.txt"
            )


class Logger(Sink):
    """What both tools get. An error of the tool ends the run with a line that names it."""

    name: LoggerName

    def __init__(self, implementation: str, run_dir: Path) -> None:
        self._implementation, self._run_dir = implementation, run_dir
        self._succeeded = self._begun = False

    def start(self, experiment: Experiment) -> None:
        self._experiment = experiment
        fields = {"implementation": self._implementation, **experiment.config.training_fields()}
        with self._as_user_error():
            self.begin(
                {name: str(value) if isinstance(value, list | dict) else value for name, value in fields.items()}
            )
        self._begun = True

    def steps(self, done: int, losses: Sequence[float], images_per_second: float | None) -> None:
        rates, first = self._experiment.update_rule.learning_rates, done - len(losses) + 1
        with self._as_user_error():
            for step, loss in enumerate(losses, first):
                self.numbers(step, {"step/loss": loss, "step/learning_rate": float(rates[step - 1])})

    def epoch(self, epoch: EpochLine, images_per_second: float | None) -> None:
        names = ("epoch", "train_loss", "train_accuracy", "test_loss", "test_accuracy")
        values = {f"epoch/{name}": float(value) for name in names if (value := getattr(epoch, name)) is not None}
        if images_per_second is not None:
            values["epoch/images_per_second"] = images_per_second
        with self._as_user_error():
            self.numbers(self._experiment.plan.all_steps(epoch.epoch)[-1], values)

    def finish(self, result: RunResult) -> None:
        values = {"test_accuracy": result.test_accuracy, "test_loss": result.test_loss}
        values |= {"startup_seconds": result.startup_seconds, "train_seconds": sum(result.epoch_train_seconds)}
        if result.images_per_second is not None:
            values["images_per_second"] = result.images_per_second
        with self._as_user_error():
            self.summary(result.num_steps, values)
        self._succeeded = True

    def close(self) -> None:
        if self._begun:
            with self._as_user_error():
                self.end(self._succeeded)

    @contextmanager
    def _as_user_error(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - each tool has its own, down to those of its network
            lines = str(error).strip().splitlines() or [""]
            raise UserError(f"--logger {self.name}: {type(error).__name__}: {lines[0][:300]}") from error

    # What a tool defines.

    def begin(self, hyperparameters: dict[str, Any]) -> None: ...

    def numbers(self, step: int, values: Mapping[str, float]) -> None: ...

    def summary(self, step: int, values: Mapping[str, float]) -> None: ...

    def end(self, succeeded: bool) -> None: ...


class TensorBoardLogger(Logger):
    """Event files in the run's folder, under `tensorboard/`.

    tensorboardX writes them: TensorFlow's and torch's own writers would load their framework in runs of another one.
    """

    name = "tensorboard"

    def begin(self, hyperparameters: dict[str, Any]) -> None:
        # tensorboardX imports torch, if it is installed, to support tensors. Here it gets none, so torch is not loaded.
        absent = {"torch"} - sys.modules.keys()
        sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
        from tensorboardX import SummaryWriter
        from tensorboardX.summary import hparams

        for name in absent:
            del sys.modules[name]
        # purge_step: a resumed run writes its earlier values again, and TensorBoard shows them once.
        folder = str(self._run_dir / "tensorboard")
        self._writer, self._hparams = SummaryWriter(folder, purge_step=0, flush_secs=10), hparams
        self._hyperparameters = {name: "none" if value is None else value for name, value in hyperparameters.items()}

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def summary(self, step: int, values: Mapping[str, float]) -> None:
        # Like `add_hparams`, but without its second file, which may get the same name as the first.
        for part in self._hparams(self._hyperparameters, dict(values)):
            self._writer.file_writer.add_summary(part)
        self.numbers(step, values)

    def end(self, succeeded: bool) -> None:
        self._writer.close()


class WandbLogger(Logger):
    """Weights & Biases. Works offline if nobody is logged in; `wandb sync FOLDER` sends the run later."""

    name = "wandb"

    def begin(self, hyperparameters: dict[str, Any]) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when it is imported
        import wandb

        settings = wandb.Settings(silent=True, console="off")
        setup = wandb.setup(settings)
        # If WANDB_MODE is set, it decides. Without it and without an account, wandb would ask for an account.
        offline = setup.settings.mode == "online" and not wandb.api.api_key
        self._run = wandb.init(
            project=setup.settings.project or PROJECT,
            name=str(self._run_dir),
            dir=str(self._run_dir),
            config=hyperparameters,
            mode="offline" if offline else None,
            settings=settings,
        )
        self._run.define_metric("*", step_metric="step")

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        # The x-axis is a separate metric: wandb's own step must not decrease, and the same step can't be logged twice.
        self._run.log({"step": step, **values})

    def summary(self, step: int, values: Mapping[str, float]) -> None:
        self._run.summary.update(dict(values))
        for name in (CONFIG_FILE, METRICS_FILE, RESULT_FILE):
            self._run.save(str(self._run_dir / name), base_path=str(self._run_dir), policy="now")

    def end(self, succeeded: bool) -> None:
        self._run.finish(exit_code=0 if succeeded else 1)


LOGGERS: dict[LoggerName, type[Logger]] = {"tensorboard": TensorBoardLogger, "wandb": WandbLogger}
