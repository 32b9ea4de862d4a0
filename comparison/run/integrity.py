"""Checks that the files of a run belong together, and that they belong to the run that was asked for."""

import hashlib
import math
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from common.platform.errors import UserError
from common.platform.files import read_bytes, read_json_model
from common.record.predictions import PREDICTIONS_FILE, Predictions
from common.record.results import CONFIG_FILE, METRICS_FILE, RESULT_FILE, EpochLine, RunResult, TurnLine
from common.spec.options import TrainConfig
from comparison.lockstep import suspects_of_evaluation
from comparison.plan.jobs import Job
from comparison.run.program import Record

# The files that a run's digest covers: tables and the report are made from them.
COVERED_FILES = (CONFIG_FILE, METRICS_FILE, PREDICTIONS_FILE, RESULT_FILE)
CLOCK_SECONDS = 2.0  # allowed difference between the clocks of a run and of its starter: one counts whole seconds
# Predictions are computed once more, in other batches. Where two scores are nearly equal, the guess may change.
DIFFERENT_GUESSES = 0.002
ROUNDING = 1e-6


def files_sha256(run_dir: Path) -> str:
    """Hex digest over the names and contents of `COVERED_FILES`. Raises UserError if one of them can't be read."""
    digest = hashlib.sha256()
    for name in COVERED_FILES:
        try:
            content = read_bytes(run_dir / name)
        except OSError as error:
            raise UserError(f"{run_dir / name}: cannot be read: {error.strerror}") from None
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def check_job(record: Record, job: Job, path: Path) -> None:
    """Raises UserError if a record does not belong to the run that `job` asks for."""
    asked = Record.identity_of(job)
    _check_same(path, {name: getattr(record, name) for name in asked}, asked)


def check_name(actual: str, asked: str) -> None:
    """Raises UserError if an implementation's runs are recorded under another name, as in a copy of its folder."""
    if actual != asked:
        raise UserError(f"{asked}_impl calls itself {actual!r}; it should give its Recorder the name {asked!r}")


def _check_same(path: Path, actual: dict[str, Any], asked: dict[str, Any]) -> None:
    for name in asked:
        if actual[name] != asked[name]:
            raise UserError(f"{path}: is of another run: {name} {actual[name]}, should be {asked[name]}")


def check_files(
    run_dir: Path,
    record: Record,
    result: RunResult,
    losses: list[float],
    epochs: list[EpochLine],
    turns: list[TurnLine],
) -> None:
    """Raises UserError if a run's files contradict each other, or have been changed since the run ended.

    Args:
      losses: the loss of every step.
      epochs: all evaluations.
    """
    path = run_dir / RESULT_FILE
    _check_process(path, record, result)
    if len(losses) != result.num_steps:
        raise UserError(f"{run_dir / METRICS_FILE}: {len(losses)} steps, the result says {result.num_steps}")
    if read_json_model(TrainConfig, run_dir / CONFIG_FILE) != result.config:
        raise UserError(f"{run_dir / CONFIG_FILE}: is not the configuration of {RESULT_FILE}")
    last = epochs[-1] if epochs else None
    totals = (result.test_correct, result.test_count, result.test_loss)
    if last is None or (last.test_correct, last.test_count, last.test_loss) != totals:
        raise UserError(f"{path}: its last evaluation is not the last one of {METRICS_FILE}")
    if [line.train_seconds for line in epochs] != result.epoch_train_seconds:
        raise UserError(f"{path}: the seconds of its epochs are not those of {METRICS_FILE}")
    predictions = Predictions.read(run_dir, len(result.class_names))
    right = int(np.sum(predictions.labels == predictions.guesses))
    if len(predictions.labels) != result.test_count or (
        abs(right - result.test_correct) > max(2, DIFFERENT_GUESSES * result.test_count)
    ):
        raise UserError(
            f"{run_dir / PREDICTIONS_FILE}: {right} of {len(predictions.labels)} are right, the result says"
            f" {result.test_correct} of {result.test_count}: suspect the weights that were written, or the evaluation:"
            f" {suspects_of_evaluation(result.config)}"
        )
    _check_speed(path, result, turns)
    if record.files_sha256 != files_sha256(run_dir):
        raise UserError(f"{run_dir}: its files have been changed since the run ended")


def _check_speed(path: Path, result: RunResult, turns: list[TurnLine]) -> None:
    """Raises UserError if images per second are not what the turns or, without them, the epochs say."""
    speed, plan = result.images_per_second, result.plan
    if speed is None or result.resumed_from is not None:
        return
    if turns:
        least = most = sum(turn.images for turn in turns) / sum(turn.seconds for turn in turns)
    else:  # the timed steps begin somewhere in the epoch where warm-up ends
        later = sum(result.epoch_train_seconds[plan.epoch_of(result.warmup_steps + 1) :])
        images = plan.images(result.warmup_steps + 1, plan.total_steps)
        least, most = images / sum(result.epoch_train_seconds), images / later if later else math.inf
    if not least * (1 - ROUNDING) <= speed <= most * (1 + ROUNDING):
        raise UserError(f"{path}: {speed:,.1f} images per second; its samples in {METRICS_FILE} say {least:,.1f}")


def _check_process(path: Path, record: Record, result: RunResult) -> None:
    """Raises UserError if the result is not from the process that was started for the run."""
    asked = {"implementation": record.implementation, "mode": record.mode, "seed": record.seed}
    actual = {"implementation": result.implementation, "mode": result.config.mode, "seed": result.config.seed}
    _check_same(path, actual, asked)
    begun = datetime.fromisoformat(record.started)
    early = (begun - result.started).total_seconds()
    late = (result.started - begun).total_seconds() + result.wall_seconds - record.process_seconds
    if max(early, late) > CLOCK_SECONDS:
        raise UserError(
            f"{path}: is of another process, started {result.started:%F %T} UTC for {result.wall_seconds:.1f} s;"
            f" this one was started {begun:%F %T} UTC for {record.process_seconds:.1f} s"
        )
