"""Weights & Biases. Works offline if nobody is logged in; `wandb sync FOLDER` sends the run later."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when it is imported

import wandb

from common.record.loggers.tracker import Guess, Tracker, Value
from common.record.predictions import as_rgb

PROJECT = "one-cnn-three-frameworks"  # unless WANDB_PROJECT names another


class WeightsAndBiases(Tracker):
    def begin(self, run: str, folder: Path, hyperparameters: Mapping[str, Value]) -> None:
        settings = wandb.Settings(silent=True, console="off")
        setup = wandb.setup(settings)
        # If WANDB_MODE is set, it decides. Without it and without an account, wandb would ask for an account.
        offline = setup.settings.mode == "online" and not wandb.api.api_key
        self._run = wandb.init(
            project=setup.settings.project or PROJECT,
            name=run,
            dir=str(folder),
            config=dict(hyperparameters),
            mode="offline" if offline else None,
            settings=settings,
        )
        self._run.define_metric("*", step_metric="step")

    def numbers(self, by_step: Mapping[int, Mapping[str, float]]) -> None:
        # The x-axis is a separate metric: wandb's own step must not decrease, and the same step can't be logged twice.
        for step, values in by_step.items():
            self._run.log({"step": step, **values})

    def summary(self, values: Mapping[str, float]) -> None:
        self._run.summary.update(dict(values))

    def predictions(self, guesses: Sequence[Guess]) -> None:
        table = wandb.Table(columns=["index", "image", "guess", "truth", "score"])
        for guess in guesses:
            table.add_data(guess.index, wandb.Image(as_rgb(guess.image)), guess.guess, guess.truth, guess.score)
        self._run.log({"predictions": table})

    def files(self, paths: Sequence[Path]) -> None:
        artifact = wandb.Artifact(f"files-{self._run.id}", type="result")
        for path in paths:
            artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def end(self, succeeded: bool) -> None:
        self._run.finish(exit_code=0 if succeeded else 1)
