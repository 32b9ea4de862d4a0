"""Whether the files of a run belong together, and to the run that was asked for: a result is not taken on trust."""

import hashlib
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from common.platform.errors import UserError
from common.platform.files import read_model
from common.record.predictions import PREDICTIONS_FILE, Predictions
from common.record.results import CONFIG_FILE, METRICS_FILE, RESULT_FILE, EpochLine, RunResult
from common.spec.options import TrainConfig
from comparison.jobs import Job
from comparison.record import Record

# What a run's digest covers: all that tables and the report are made of.
COVERED_FILES = (CONFIG_FILE, METRICS_FILE, PREDICTIONS_FILE, RESULT_FILE)
CLOCK_SECONDS = 2.0  # by which the clocks of a run and of who looks on may part: one of them counts whole seconds
# Predictions are computed once more, in other batches: a score that is as good as equal may fall the other way.
DIFFERENT_GUESSES = 0.002


def files_sha256(run_dir: Path) -> str:
    """Hex digest over the names and contents of `COVERED_FILES`. Raises UserError where one can't be read."""
    digest = hashlib.sha256()
    for name in COVERED_FILES:
        try:
            content = (run_dir / name).read_bytes()
        except OSError as error:
            raise UserError(f"{run_dir / name}: cannot be read: {error.strerror}") from None
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def check_job(record: Record, job: Job, path: Path) -> None:
    """Raises UserError where a record is not of the run that `job` asks for."""
    asked = Record.identity_of(job)
    _check_same(path, {name: getattr(record, name) for name in asked}, asked)


def _check_same(path: Path, found: dict[str, Any], asked: dict[str, Any]) -> None:
    for name in asked:
        if found[name] != asked[name]:
            raise UserError(f"{path}: is of another run: {name} {found[name]}, should be {asked[name]}")


def check_files(run_dir: Path, record: Record, result: RunResult, losses: list[float], epochs: list[EpochLine]) -> None:
    """Raises UserError where a run's files contradict each other, or are not as they were when it ended.

    Args:
      losses: of its steps.
      epochs: all of them.
    """
    path = run_dir / RESULT_FILE
    _check_process(path, record, result)
    if len(losses) != result.num_steps:
        raise UserError(f"{run_dir / METRICS_FILE}: {len(losses)} steps, the result says {result.num_steps}")
    if read_model(TrainConfig, run_dir / CONFIG_FILE) != result.config:
        raise UserError(f"{run_dir / CONFIG_FILE}: is not the configuration of {RESULT_FILE}")
    last = epochs[-1] if epochs else None
    told = (result.test_correct, result.test_count, result.test_loss)
    if last is None or (last.test_correct, last.test_count, last.test_loss) != told:
        raise UserError(f"{path}: its last evaluation is not the last one of {METRICS_FILE}")
    if [line.train_seconds for line in epochs] != result.epoch_train_seconds:
        raise UserError(f"{path}: the seconds of its epochs are not those of {METRICS_FILE}")
    predictions = Predictions.read(run_dir)
    right = int(np.sum(predictions.labels == predictions.guesses))
    if len(predictions.labels) != result.test_count or (
        abs(right - result.test_correct) > max(2, DIFFERENT_GUESSES * result.test_count)
    ):
        raise UserError(
            f"{run_dir / PREDICTIONS_FILE}: {right} of {len(predictions.labels)} are right, the result says"
            f" {result.test_correct} of {result.test_count}"
        )
    if record.files_sha256 is not None and record.files_sha256 != files_sha256(run_dir):
        raise UserError(f"{run_dir}: its files have been changed since the run ended")


def _check_process(path: Path, record: Record, result: RunResult) -> None:
    """Raises UserError where the result is not of the process that was started for it."""
    asked = {"implementation": record.implementation, "mode": record.mode, "seed": record.seed}
    found = {"implementation": result.implementation, "mode": result.config.mode, "seed": result.config.seed}
    _check_same(path, found, asked)
    begun = datetime.fromisoformat(record.started)
    early = (begun - result.started).total_seconds()
    late = (result.started - begun).total_seconds() + result.wall_seconds - record.process_seconds
    if max(early, late) > CLOCK_SECONDS:
        raise UserError(
            f"{path}: is of another process, started {result.started:%F %T} UTC for {result.wall_seconds:.1f} s;"
            f" this one was started {begun:%F %T} UTC for {record.process_seconds:.1f} s"
        )
