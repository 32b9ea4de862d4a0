"""The files of a comparison's folder: what was asked for, and a record of every run, written as soon as it ends."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from common.platform.errors import UserError
from common.platform.files import read_model, write_model, write_text
from common.record.checkpoints import has_whole_checkpoint
from common.record.results import EpochLine, RunResult, read_metrics, read_result, read_step_losses
from common.spec.options import TrainConfig
from comparison.integrity import check_files, check_job, files_sha256
from comparison.jobs import Job, Variant
from comparison.options import CompareConfig
from comparison.program import Ended, Program
from comparison.record import RECORD_FILE, Record

REQUEST_FILE = "comparison.json"
LOG_FILE = "log.txt"


class Request(BaseModel):
    """`comparison.json`.

    Attributes:
      commands: that made it: the first one, and those that resumed it.
      config: of a run, with the accelerator and the devices that all implementations can use.
      created: the time it was begun, ISO 8601, UTC.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[2]
    created: str
    commands: list[str]
    options: CompareConfig
    config: TrainConfig

    def write(self, folder: Path) -> None:
        content = self.model_dump(mode="json", exclude={"options"})
        # Only what was given: what was not stays the default of whoever reads it.
        content["options"] = self.options.model_dump(mode="json", exclude_unset=True)
        write_text(folder / REQUEST_FILE, json.dumps(content, indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path, option: str) -> "Request":
        """Raises UserError, which names `option`, where the folder holds no comparison."""
        return read_model(cls, folder / REQUEST_FILE, f"{option} {folder}: holds no comparison; ")


@dataclass(frozen=True)
class Run:
    """A run that has ended.

    Attributes:
      result: None where it failed.
      losses: of every step; empty where it failed.
      epochs: all of them; empty where it failed.
    """

    record: Record
    run_dir: Path
    result: RunResult | None = None
    losses: list[float] = field(default_factory=list)
    epochs: list[EpochLine] = field(default_factory=list)

    @property
    def is_measured(self) -> bool:
        """Whether its times are those of a whole training: not where it went on from a checkpoint."""
        return self.result is not None and self.result.resumed_from is None

    @property
    def images_per_second(self) -> float | None:
        """None where nothing was measured, or not all of it."""
        return self.result.images_per_second if self.result and self.is_measured else None

    @property
    def round_key(self) -> tuple[int, int, int]:
        """Runs with the same one were made one after the other, in the same round with the same seed: a pair."""
        return self.record.seed, self.record.round, self.record.session

    def shown_dir(self, folder: Path) -> str:
        """Its folder as seen from the comparison's, which may be moved."""
        return str(self.run_dir.absolute().relative_to(folder.absolute()))

    @property
    def log(self) -> Path:
        return self.run_dir / LOG_FILE

    def last_log_lines(self, count: int = 5) -> list[str]:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return [line for line in lines if line.strip()][-count:]


def read_run(folder: Path, job: Job) -> Run | None:
    """The run of `job` in the comparison's folder, however it ended; None where it has not ended."""
    run_dir = folder / job.path
    if not (run_dir / RECORD_FILE).exists():
        return None
    try:
        record = read_model(Record, run_dir / RECORD_FILE)
        check_job(record, job, run_dir / RECORD_FILE)
    except UserError as error:  # what it says can't be told from what it should
        return Run(Record.failed(job, str(error)), run_dir)
    return load_run(run_dir, record)


def record_run(job: Job, program: Program, ended: Ended) -> Run:
    """The run that has just ended; writes its record.

    A run has succeeded if and only if it exited with 0 and its files are valid.
    """
    run = load_run(program.run_dir, Record.make(job, program.session, ended))
    if run.result:
        run = replace(run, record=run.record.model_copy(update={"files_sha256": files_sha256(run.run_dir)}))
    write_model(run.run_dir / RECORD_FILE, run.record)
    return run


def load_run(run_dir: Path, record: Record) -> Run:
    """With its result, if it has succeeded; files that turn out damaged make it a failure."""
    if record.failure is not None:
        return Run(record, run_dir)
    try:
        result, losses, epochs = read_result(run_dir), read_step_losses(run_dir), read_metrics(run_dir, EpochLine)
        check_files(run_dir, record, result, losses, epochs)
    except UserError as error:
        return Run(record.model_copy(update={"failure": str(error)}), run_dir)
    return Run(record, run_dir, result, losses, epochs)


def clear_unfinished(run_dir: Path) -> Path | None:
    """Sets aside what an interrupted or failed run has left under its name, so that it can be run again.

    Returns the folder, of all that were set aside, of the latest one with a checkpoint that can be gone on from.
    """
    asides: list[Path] = []
    while (aside := run_dir.with_name(f"{run_dir.name}.unfinished-{len(asides) + 1}")).exists():
        asides.insert(0, aside)
    if run_dir.exists():
        run_dir.rename(aside)
        asides.insert(0, aside)
    return next((one for one in asides if has_whole_checkpoint(one)), None)


def tuned(variants: list[Variant], runs: list[Run], target_accuracy: float | None) -> list[Variant]:
    """Each variant with the best of the learning rates it was tuned over; as it is where it was not.

    Best: finished with the most seeds; of these the target accuracy reached with the most seeds, then in the
    fewest epochs on average; without a target, or where none reaches it, the highest mean test accuracy, then
    the lowest mean test loss. What a variant has been run with already stays.

    Raises:
      UserError: a variant for which no rate could be trained.
    """
    chosen = []
    for variant in variants:
        of_variant = [run for run in runs if run.record.variant == dict(variant.values)]
        tuning = [run for run in of_variant if run.record.tuning]
        if not tuning:
            chosen.append(variant)
            continue
        rates: dict[float, list[Run]] = {}
        for run in tuning:
            if run.result and run.result.config.learning_rate:
                rates.setdefault(run.result.config.learning_rate, []).append(run)
        if not rates:
            raise UserError(f"--tune-over: none of the rates could be trained for {variant.name}: {_failure(tuning)}")
        used = [run.result.config.learning_rate for run in of_variant if run.result and not run.record.tuning]

        def merit(rate: float, rates: dict[float, list[Run]] = rates) -> tuple[float, ...]:
            results = [run.result for run in rates[rate] if run.result]
            reached = [epochs for run in rates[rate] if (epochs := epochs_to(run, target_accuracy)) is not None]
            accuracy = sum(result.test_accuracy for result in results) / len(results)
            loss = sum(result.test_loss for result in results) / len(results)
            mean_epochs = sum(reached) / len(reached) if reached else 0.0
            return len(results), len(reached), -mean_epochs, accuracy, -loss

        best = used[0] if used else max(rates, key=merit)
        chosen.append(Variant(variant.values, variant.config.replace(learning_rate=best)))
    return chosen


def _failure(runs: list[Run]) -> str:
    """Why the first of them failed, in the words of its log where it has any."""
    words = runs[0].last_log_lines(1)
    return f"{runs[0].record.failure}{': ' + words[0] if words else ''}"


def epochs_to(run: Run, accuracy: float | None) -> int | None:
    """Epochs until the test accuracy first reached `accuracy`; None where it never did, or none is asked for."""
    if accuracy is None:
        return None
    return next((line.epoch for line in run.epochs if line.test_accuracy >= accuracy), None)
