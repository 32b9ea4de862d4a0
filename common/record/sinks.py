"""Sinks receive the steps and epochs of a run: files (here), the terminal (progress.py), a benchmark's bare loop."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from common.experiment import Experiment
from common.platform.files import writing
from common.record.results import METRICS_FILE, EpochLine, PlanLine, RunResult, TurnLine, write_result


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


class RunFiles(Sink):
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
