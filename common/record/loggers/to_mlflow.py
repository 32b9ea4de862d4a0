"""MLflow: writes to the server in MLFLOW_TRACKING_URI, or by default to `mlflow.db` in the current folder."""

import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when it is imported

import mlflow
from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from common.record.loggers.tracker import Guess, Tracker, Value
from common.record.predictions import as_rgb

NOT_IN_NAMES = re.compile(r"[^\w\-. :/]")  # characters that MLflow does not accept in a metric's name
MOST_METRICS = 1000  # that MLflow accepts in one call
EXPERIMENT = "one-cnn-three-frameworks"  # unless MLFLOW_EXPERIMENT_NAME names another


class MLflow(Tracker):
    def begin(self, run: str, folder: Path, hyperparameters: Mapping[str, Value]) -> None:
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # otherwise it logs each table that it creates
        self._client = MlflowClient(mlflow.get_tracking_uri())
        experiment = mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT)
        self._id = self._client.create_run(experiment.experiment_id, run_name=run).info.run_id
        self._client.log_batch(self._id, params=[Param(name, str(value)) for name, value in hyperparameters.items()])

    def numbers(self, by_step: Mapping[int, Mapping[str, float]]) -> None:
        now = int(1000 * time.time())
        metrics = [
            Metric(NOT_IN_NAMES.sub("_", name), value, now, step)
            for step, values in by_step.items()
            for name, value in values.items()
        ]
        for first in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._id, metrics[first : first + MOST_METRICS])

    def summary(self, values: Mapping[str, float]) -> None:
        self.numbers({0: values})

    def predictions(self, guesses: Sequence[Guess]) -> None:
        columns = {
            "index": [guess.index for guess in guesses],
            "image": [mlflow.Image(as_rgb(guess.image)) for guess in guesses],
            "guess": [guess.guess for guess in guesses],
            "truth": [guess.truth for guess in guesses],
            "score": [guess.score for guess in guesses],
        }
        self._client.log_table(self._id, columns, "predictions.json")

    def files(self, paths: Sequence[Path]) -> None:
        for path in paths:
            self._client.log_artifact(self._id, str(path))

    def end(self, succeeded: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if succeeded else "FAILED")
