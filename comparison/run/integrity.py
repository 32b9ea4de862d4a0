"""Checks that the files of a run belong together, and that they belong to the run that was asked for."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from common.platform.errors import UserError
from common.record.predictions import PREDICTIONS_FILE, Predictions
from common.record.results import CONFIG_FILE, METRICS_FILE, RESULT_FILE, RunResult
from comparison.lockstep import suspects_of_evaluation
from comparison.plan.jobs import Job
from comparison.run.program import Record

# The files that a run's digest covers: tables and the report are made from them.
COVERED_FILES = (CONFIG_FILE, METRICS_FILE, PREDICTIONS_FILE, RESULT_FILE)
# Predictions are computed once more, in other batches. Where two scores are nearly equal, the guess may change.
DIFFERENT_GUESSES = 0.002


def files_sha256(run_dir: Path) -> str:
    """Hex digest over the names and contents of `COVERED_FILES`. Raises UserError if one of them can't be read."""
    digest = hashlib.sha256()
    for name in COVERED_FILES:
        try:
            content = (run_dir / name).read_bytes()
        except OSError as error:
            raise UserError(f"{run_dir / name}: cannot be read: {error.strerror}") from None
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def check_job(record: Record, job: Job, path: Path) -> None:
    """Raises UserError if a record does not belong to the run that `job` asks for."""
    for name, asked in Record.identity_of(job).items():
        if getattr(record, name) != asked:
            raise UserError(f"{path}: is of another run: {name} {getattr(record, name)}, should be {asked}")


def check_name(actual: str, asked: str) -> None:
    """Raises UserError if an implementation's runs are recorded under another name, as in a copy of its folder."""
    if actual != asked:
        raise UserError(f"{asked}_impl calls itself {actual!r}; it should give its Recorder the name {asked!r}")


def check_files(run_dir: Path, record: Record, result: RunResult, losses: Sequence[float]) -> None:
    """Raises UserError if a run's files contradict each other, or have been changed since the run ended.

    Args:
      losses: the loss of every step.
    """
    if record.files_sha256 != files_sha256(run_dir):
        raise UserError(f"{run_dir}: its files have been changed since the run ended")
    if len(losses) != result.num_steps:
        raise UserError(f"{run_dir / METRICS_FILE}: {len(losses)} steps, the result says {result.num_steps}")
    predictions = Predictions.read(run_dir)
    right = int(np.sum(predictions.labels == predictions.guesses))
    if len(predictions.labels) != result.test_count or (
        abs(right - result.test_correct) > max(2, DIFFERENT_GUESSES * result.test_count)
    ):
        raise UserError(
            f"{run_dir / PREDICTIONS_FILE}: {right} of {len(predictions.labels)} are right, the result says"
            f" {result.test_correct} of {result.test_count}: suspect the weights that were written, or the evaluation:"
            f" {suspects_of_evaluation(result.config)}"
        )
