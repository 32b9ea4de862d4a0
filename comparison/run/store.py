"""The runs in a comparison's folder: a record of each, written as soon as it has ended, beside the files that it wrote.

A run's files must agree with each other; otherwise the run has failed.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from common.platform.errors import UserError
from common.platform.files import read_file_end, read_json_model, write_json_model
from common.record.checkpoints import checkpoint_dirs
from common.record.predictions import PREDICTIONS_FILE, Predictions
from common.record.results import (
    METRICS_FILE,
    EpochLine,
    RunResult,
    TurnLine,
    read_metrics,
    read_result,
    read_step_losses,
)
from common.record.timeline import SHOWN_PHASES, Phase
from comparison.lockstep import suspects_of_evaluation
from comparison.plan.jobs import Job
from comparison.ratios import typical_speed
from comparison.run.load_meter import quiet
from comparison.run.program import NO_START, RECORD_FILE, Program, RunEnd, RunRecord

LOG_FILE = "log.txt"
FAILURE_FILE = "failure.txt"  # of an additional run (side_runs.py): why it has no result, in one line
# Predictions are computed once more, in other batches. Where two scores are nearly equal, the guess may change.
DIFFERENT_GUESSES = 0.002


class TargetReached(NamedTuple):
    """When a run's test accuracy first reached the target, without start-up; NaN if it never did."""

    epochs: float = math.nan
    steps: float = math.nan
    seconds: float = math.nan


@dataclass(frozen=True)
class Run:
    """A run that has ended.

    Attributes:
      result: None if the run failed.
      losses: the loss of every step; empty if the run failed.
      epochs: all evaluations; empty if the run failed.
      turns: its turns, in the order of the cycles; empty if the run failed, or had no turns.
    """

    record: RunRecord
    run_dir: Path
    result: RunResult | None = None
    losses: list[float] = field(default_factory=list)
    epochs: list[EpochLine] = field(default_factory=list)
    turns: list[TurnLine] = field(default_factory=list)

    @property
    def is_measured(self) -> bool:
        """Whether its times are those of a whole training: not if the run continued from a checkpoint."""
        return self.result is not None and self.result.resumed_from is None

    @property
    def loop_seconds(self) -> float:
        """Seconds of training and evaluation, without start-up; 0 if the run failed."""
        phases = self.result.phase_seconds if self.result else {}
        return phases.get("training", 0.0) + phases.get("evaluation", 0.0)

    @property
    def own_seconds(self) -> float:
        """From the start of its process to the end, without waiting for its turns."""
        waiting = self.result.phase_seconds["waiting"] if self.result else 0.0
        return max(0.0, self.record.process_seconds - waiting)

    @property
    def phase_seconds(self) -> dict[Phase, float]:
        """By phase, without waiting for its turns; empty if the run failed.

        The time after the result was written is a part of the rest.
        """
        if self.result is None:
            return {}
        seconds = dict(self.result.phase_seconds)
        after = self.record.process_seconds - self.result.wall_seconds
        seconds["rest"] += max(0.0, after)
        return {phase: seconds[phase] for phase in SHOWN_PHASES}

    def speed(self, busy: bool) -> float | None:
        """Images per second in training: a trimmed mean over turns or, without turns, of the whole training.

        None if it was not measured, or not for the whole training.

        Args:
          busy: whether other programs disturbed all rounds, so that disturbed turns count, too, as they do for ratios.
        """
        if self.result is None or not self.is_measured:
            return None
        turns = self.turns if busy else quiet(self.turns)
        return typical_speed([turn.images_per_second for turn in turns]) if turns else self.result.images_per_second

    def reach(self, accuracy: float | None) -> TargetReached:
        """When it first reached `accuracy`, checked after every epoch; never, if `accuracy` is None.

        The seconds include those of evaluations, as in MLPerf.
        """
        seconds = 0.0
        for line in self.epochs:
            seconds += (line.train_seconds or 0.0) + line.eval_seconds
            if self.result and accuracy is not None and (line.test_accuracy or 0) >= accuracy:
                return TargetReached(line.epoch, self.result.plan.last_step(line.epoch), seconds)
        return TargetReached()

    def shown_dir(self, folder: Path) -> str:
        """Its folder, relative to the comparison's folder, which may be moved."""
        return str(self.run_dir.absolute().relative_to(folder.absolute()))

    @property
    def log(self) -> Path:
        return self.run_dir / LOG_FILE

    def last_log_lines(self, count: int = 5) -> list[str]:
        return log_end(self.log, count)


def log_end(log: Path, count: int) -> list[str]:
    """The last `count` lines of a log that may be missing, without empty ones."""
    try:
        lines = read_file_end(log).splitlines()
    except FileNotFoundError:
        return []
    return [line.expandtabs() for line in lines if line.strip()][-count:]


def run_again_dir(run_dir: Path, group: int) -> Path:
    """The folder of a run of the first row that was made once more, for a further group of its round."""
    return run_dir.with_name(f"{run_dir.name}.group-{group}")


def read_runs_again(folder: Path, job: Job) -> list[Run]:
    """The runs of `job` that were made once more, for further groups of its round."""
    runs: list[Run] = []
    while run := read_run(folder, job, len(runs) + 2):
        runs.append(run)
    return runs


def read_run(folder: Path, job: Job, group: int = 1) -> Run | None:
    """The run of `job` in the comparison's folder, even if it has failed; None if it has not ended.

    Args:
      group: above 1, the run that was made once more for this group of its round.
    """
    run_dir = folder / job.path if group == 1 else run_again_dir(folder / job.path, group)
    path = run_dir / RECORD_FILE
    if not os.path.exists(path):  # noqa: PTH110 - Path.exists raises if a name is too long
        return None
    try:
        return load_run(run_dir, read_json_model(RunRecord, path))
    except UserError as error:  # the record is not valid, so nothing in it can be used
        return Run(RunRecord.make(job, 1, RunEnd(started=NO_START, failure=str(error))), run_dir)


def store_run(job: Job, program: Program, ended: RunEnd) -> Run:
    """Writes the record of a run that has just ended, and returns the run.

    A run has succeeded if and only if it exited with 0 and its files are valid.
    """
    run = load_run(program.run_dir, RunRecord.make(job, program.session, ended))
    write_json_model(run.run_dir / RECORD_FILE, run.record)
    return run


def load_run(run_dir: Path, record: RunRecord) -> Run:
    """The run with its result, if it has succeeded. If its files are damaged, the run has failed."""
    if record.failure is not None:
        return Run(record, run_dir)
    try:
        result, losses, epochs = read_result(run_dir), read_step_losses(run_dir), read_metrics(run_dir, EpochLine)
        turns = read_metrics(run_dir, TurnLine)
        _check_files(run_dir, result, losses)
    except UserError as error:
        return Run(record.model_copy(update={"failure": str(error)}), run_dir)
    return Run(record, run_dir, result, losses, epochs, turns)


def _check_files(run_dir: Path, result: RunResult, losses: Sequence[float]) -> None:
    """Raises UserError if a run's files contradict each other.

    Args:
      losses: the loss of every step.
    """
    if len(losses) != result.num_steps:
        raise UserError(f"{run_dir / METRICS_FILE}: {len(losses)} steps, the result says {result.num_steps}")
    predictions = Predictions.read(run_dir)
    right, count = int(np.sum(predictions.labels == predictions.guesses)), len(predictions.labels)
    most = max(2, DIFFERENT_GUESSES * result.test_count)
    if count != result.test_count or abs(right - result.test_correct) > most:
        raise UserError(
            f"{run_dir / PREDICTIONS_FILE}: {right} of {count} are right, the result says {result.test_correct} of"
            f" {result.test_count}: suspect the weights that were written, or the evaluation:"
            f" {suspects_of_evaluation(result.config)}"
        )


def check_name(actual: str, asked: str) -> None:
    """Raises UserError if an implementation's runs are recorded under another name, as in a copy of its folder."""
    if actual != asked:
        raise UserError(f"{asked}_impl calls itself {actual!r}; it should give its Recorder the name {asked!r}")


def clear_unfinished(run_dir: Path) -> Path | None:
    """Renames the folder that an interrupted or failed run has left, so that the run can be made again.

    Of all folders that were renamed so, it returns the latest one with a checkpoint to resume from, or None.
    """
    asides: list[Path] = []
    while (aside := run_dir.with_name(f"{run_dir.name}.unfinished-{len(asides) + 1}")).exists():
        asides.insert(0, aside)
    if run_dir.exists():
        run_dir.rename(aside)
        asides.insert(0, aside)
    return next((folder for folder in asides if any(checkpoint_dirs(folder))), None)
