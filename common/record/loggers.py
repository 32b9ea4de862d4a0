"""Sinks for tracking tools, TensorBoard and Weights & Biases; `--logger` selects them.

Each stores losses, accuracies, learning rate and speed by step, the hyperparameters, and the numbers of the whole run.
A tool's package is imported when a run starts that uses it.
"""

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from common.experiment import Experiment
from common.platform.errors import UserError
from common.record.results import CONFIG_FILE, METRICS_FILE, RESULT_FILE, EpochLine, RunResult
from common.record.sinks import Sink
from common.spec.options import LoggerName

WANDB_PROJECT = "one-cnn-three-frameworks"  # of Weights & Biases, unless WANDB_PROJECT names another
LoggedNumbers = dict[str, float]


def check_loggers(names: Sequence[LoggerName]) -> None:
    """Raises UserError if the package of a tool is not installed; imports none of them."""
    for name in names:
        package = LOGGERS[name].package
        if importlib.util.find_spec(package) is None:
            raise UserError(f"--logger {name}: {package} is not installed; pip install -r requirements/loggers.txt")


class Logger(Sink):
    """What both tools get. An error of the tool ends the run with a line that names it."""

    name: LoggerName
    package: str

    def __init__(self, implementation: str, run_dir: Path) -> None:
        self.implementation, self.run_dir = implementation, run_dir
        self.succeeded = False

    def start(self, experiment: Experiment) -> None:
        self.experiment = experiment
        options = experiment.config.training_fields()
        options = {name: str(value) if isinstance(value, list) else value for name, value in options.items()}
        self.call(self.begin, {"implementation": self.implementation, **options})

    def steps(self, done: int, losses: Sequence[float], images_per_second: float | None) -> None:
        rates = self.experiment.update_rule.learning_rates
        for step, loss in enumerate(losses, done - len(losses) + 1):
            self.call(self.log, step, {"step/loss": loss, "step/learning_rate": float(rates[step - 1])})

    def epoch(self, epoch: EpochLine, images_per_second: float | None) -> None:
        names = ("epoch", "train_loss", "train_accuracy", "test_loss", "test_accuracy")
        numbers = {f"epoch/{name}": float(value) for name in names if (value := getattr(epoch, name)) is not None}
        if images_per_second is not None:
            numbers["epoch/images_per_second"] = images_per_second
        self.call(self.log, self.experiment.plan.last_step(epoch.epoch), numbers)

    def finish(self, result: RunResult) -> None:
        names = {"test_accuracy", "test_loss", "startup_seconds", "images_per_second"}
        numbers = result.model_dump(include=names, exclude_none=True)
        self.call(self.end, result.num_steps, numbers | {"train_seconds": sum(result.epoch_train_seconds)})
        self.succeeded = True

    def close(self) -> None:
        self.call(self.leave)

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            function(*arguments)
        except Exception as error:  # noqa: BLE001 - each tool has its own, down to those of its network
            lines = str(error).strip().splitlines() or [""]
            raise UserError(f"--logger {self.name}: {type(error).__name__}: {lines[0][:300]}") from error

    # What a tool defines.

    def begin(self, options: dict[str, Any]) -> None: ...

    def log(self, step: int, numbers: LoggedNumbers) -> None: ...

    def end(self, step: int, numbers: LoggedNumbers) -> None:
        """Numbers of the whole run, which has succeeded."""

    def leave(self) -> None: ...


class TensorBoardLogger(Logger):
    """Event files in the run's folder, under `tensorboard/`.

    tensorboardX writes them: TensorFlow's and torch's own writers would load their framework in runs of another one.
    """

    name, package = "tensorboard", "tensorboardX"

    def begin(self, options: dict[str, Any]) -> None:
        # tensorboardX imports torch, if it is installed, to support tensors. Here it gets none, so torch is not loaded.
        absent = {"torch"} - sys.modules.keys()
        sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
        from tensorboardX import SummaryWriter
        from tensorboardX.summary import hparams

        for name in absent:
            del sys.modules[name]
        # purge_step: a resumed run writes its earlier values again, and TensorBoard shows them once.
        self.writer = SummaryWriter(str(self.run_dir / "tensorboard"), purge_step=0, flush_secs=10)
        self.hparams = hparams
        self.options = {key: "none" if value is None else value for key, value in options.items()}

    def log(self, step: int, numbers: LoggedNumbers) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)

    def end(self, step: int, numbers: LoggedNumbers) -> None:
        # Like `add_hparams`, but without its second file, which may get the same name as the first.
        for part in self.hparams(self.options, numbers):
            self.writer.file_writer.add_summary(part)
        self.log(step, numbers)

    def leave(self) -> None:
        self.writer.close()


class WandbLogger(Logger):
    """Weights & Biases. Works offline if nobody is logged in; `wandb sync FOLDER` sends the run later."""

    name, package = "wandb", "wandb"

    def begin(self, options: dict[str, Any]) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when it is imported
        import wandb

        settings = wandb.Settings(silent=True, console="off")
        setup = wandb.setup(settings)
        # If WANDB_MODE is set, it decides. Without it and without an account, wandb would ask for an account.
        offline = setup.settings.mode == "online" and not wandb.api.api_key
        self.run = wandb.init(
            project=setup.settings.project or WANDB_PROJECT,
            name=str(self.run_dir),
            dir=str(self.run_dir),
            config=options,
            mode="offline" if offline else None,
            settings=settings,
        )
        self.run.define_metric("*", step_metric="step")

    def log(self, step: int, numbers: LoggedNumbers) -> None:
        # The x-axis is a separate metric: wandb's own step must not decrease, and the same step can't be logged twice.
        self.run.log({"step": step, **numbers})

    def end(self, step: int, numbers: LoggedNumbers) -> None:
        self.run.summary.update(numbers)
        for name in (CONFIG_FILE, METRICS_FILE, RESULT_FILE):
            self.run.save(str(self.run_dir / name), base_path=str(self.run_dir), policy="now")

    def leave(self) -> None:
        self.run.finish(exit_code=0 if self.succeeded else 1)


LOGGERS: dict[LoggerName, type[Logger]] = {"tensorboard": TensorBoardLogger, "wandb": WandbLogger}
