"""Sends a run to a tracking tool: losses, accuracy, learning rate and speed in training, then guesses and files."""

from collections.abc import Sequence
from pathlib import Path

from common.experiment import Experiment
from common.record.loggers import make_tracker
from common.record.loggers.tracker import Guess, Value, tool_error_as_user_error
from common.record.predictions import PREDICTIONS_FILE, Predictions
from common.record.results import CONFIG_FILE, METRICS_FILE, RESULT_FILE, EpochLine, RunResult
from common.record.sinks import Sink
from common.spec.options import LoggerName, TrainConfig

MOST_GUESSES = 100  # in the table; half of them are wrong guesses, if there are that many


class LoggedRun(Sink):
    """A sink for one tool, in one process of a run. An error of the tool ends the run with a line that names it."""

    def __init__(self, name: LoggerName, implementation: str, run_dir: Path) -> None:
        self._name, self._implementation, self._run_dir = name, implementation, run_dir
        self._finished = self._begun = False

    def start(self, experiment: Experiment) -> None:
        self._experiment = experiment
        with tool_error_as_user_error(self._name):
            self._tracker = make_tracker(self._name)
            hyperparameters = {"implementation": self._implementation, **as_hyperparameters(experiment.config)}
            self._tracker.begin(str(self._run_dir), self._run_dir, hyperparameters)
        self._begun = True

    def steps(self, done: int, losses: Sequence[float], images_per_second: float | None) -> None:
        rates, first = self._experiment.update_rule.learning_rates, done - len(losses) + 1
        found = {
            step: {"step/loss": loss, "step/learning_rate": float(rates[step - 1])}
            for step, loss in enumerate(losses, first)
        }
        if images_per_second is not None:
            found[done]["step/images_per_second"] = images_per_second
        with tool_error_as_user_error(self._name):
            self._tracker.numbers(found)

    def epoch(self, epoch: EpochLine, images_per_second: float | None) -> None:
        kept = ("epoch", "train_loss", "train_accuracy", "test_loss", "test_accuracy")
        values = {f"epoch/{name}": float(value) for name in kept if (value := getattr(epoch, name)) is not None}
        if images_per_second is not None:
            values["epoch/images_per_second"] = images_per_second
        with tool_error_as_user_error(self._name):
            self._tracker.numbers({self._experiment.plan.all_steps(epoch.epoch)[-1]: values})

    def finish(self, result: RunResult) -> None:
        values = {"test_accuracy": result.test_accuracy, "test_loss": result.test_loss}
        values |= {"startup_seconds": result.startup_seconds, "train_seconds": sum(result.epoch_train_seconds)}
        if result.images_per_second is not None:
            values["images_per_second"] = result.images_per_second
        names = [CONFIG_FILE, METRICS_FILE, RESULT_FILE, PREDICTIONS_FILE]
        with tool_error_as_user_error(self._name):
            self._tracker.summary(values)
            if (self._run_dir / PREDICTIONS_FILE).exists():
                self._tracker.predictions(some_guesses(self._experiment, Predictions.read(self._run_dir)))
            self._tracker.files([path for name in names if (path := self._run_dir / name).exists()])
        self._finished = True

    def close(self) -> None:
        if self._begun:
            with tool_error_as_user_error(self._name):
                self._tracker.end(self._finished)


def as_hyperparameters(config: TrainConfig) -> dict[str, Value]:
    """The options that determine the training, as names and plain values."""
    fields = config.training_fields()
    return {name: str(value) if isinstance(value, list | dict) else value for name, value in fields.items()}


def some_guesses(experiment: Experiment, predictions: Predictions) -> list[Guess]:
    """Guesses for test images: first wrong ones, then right ones, each in the order of the test set."""
    dataset = experiment.dataset
    is_wrong = predictions.guesses != predictions.labels
    wrong, right = (list(map(int, kind.nonzero()[0][:MOST_GUESSES])) for kind in (is_wrong, ~is_wrong))
    wrong = wrong[: max(MOST_GUESSES // 2, MOST_GUESSES - len(right))]
    return [
        Guess(
            index,
            dataset.test_images[index],
            dataset.class_names[predictions.labels[index]],
            dataset.class_names[predictions.guesses[index]],
            float(predictions.scores[index]),
        )
        for index in [*wrong, *right[: MOST_GUESSES - len(wrong)]]
    ]
