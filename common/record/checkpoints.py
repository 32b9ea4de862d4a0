"""Checkpoints: folders from which a run continues, in the same or another framework, on any number of devices.

`RUN/checkpoints/step-000000120` contains `state.safetensors` (`common.spec.state`), `losses.safetensors` (float64, of
all steps so far), `checkpoint.json` (`Checkpoint`) and `checksums.sha256`, which `sha256sum -c` reads.
"""

import hashlib
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from common.experiment import Experiment
from common.platform.errors import UserError, option_name
from common.platform.files import read_arrays, read_model, write_arrays, write_model, writing
from common.record.results import EpochLine
from common.spec.options import UNTRAINED, TrainConfig, fields_of_kind
from common.spec.state import STATE_FILE, TrainState

CHECKPOINTS_DIR = "checkpoints"
LOSSES_FILE, CHECKPOINT_FILE, CHECKSUMS_FILE = "losses.safetensors", "checkpoint.json", "checksums.sha256"
FILES = (STATE_FILE, LOSSES_FILE, CHECKPOINT_FILE)


class Checkpoint(BaseModel):
    """The content of `checkpoint.json`: what a run had recorded when the checkpoint was made.

    Attributes:
      implementation: name of the implementation that made it, such as `pt`.
      config: configuration of the run.
      data_sha256: hex digest over the training and test arrays.
      step: number of steps done.
      epochs: the finished epochs.
      epoch_correct: number of correct answers in the steps so far of the unfinished epoch.
      epoch_seconds: training seconds of these steps.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    implementation: str
    config: TrainConfig
    data_sha256: str
    step: int = Field(gt=0)
    epochs: list[EpochLine]
    epoch_correct: int = Field(ge=0)
    epoch_seconds: float = Field(ge=0)


def write_checkpoint(
    run_dir: Path, checkpoint: Checkpoint, losses: Sequence[float], state: TrainState, keep: int
) -> Path:
    """Writes a checkpoint under a temporary name, then renames it: it is complete or absent. Returns its folder.

    Args:
      keep: number of checkpoints to keep, including this one.

    Raises:
      FileError: the checkpoint can't be written.
    """
    folder = checkpoint_dir(run_dir, checkpoint.step)
    aside = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}")
    try:
        with writing(folder):
            aside.mkdir(parents=True)
            write_arrays(aside / STATE_FILE, state.to_arrays())
            write_arrays(aside / LOSSES_FILE, {"losses": np.array(losses, np.float64)})
            write_model(aside / CHECKPOINT_FILE, checkpoint)
            sums = [f"{_sha256(aside / name)}  {name}\n" for name in FILES]
            (aside / CHECKSUMS_FILE).write_text("".join(sums))
            for path in [*aside.iterdir(), aside]:
                _flush(path)
            if folder.exists():  # the run was resumed from an earlier checkpoint
                folder.rename(aside.with_name(f"{aside.name}.old"))
            aside.rename(folder)
            _flush(folder.parent)
    finally:
        for path in folder.parent.glob(".step-*"):  # also removes what a killed process has left
            shutil.rmtree(path, ignore_errors=True)
    for path in list(checkpoint_dirs(run_dir))[keep:]:
        shutil.rmtree(path, ignore_errors=True)
    return folder


def _flush(path: Path) -> None:
    """Flushes a file, or the list of names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checkpoint_dir(run_dir: Path, step: int) -> Path:
    return run_dir / CHECKPOINTS_DIR / f"step-{step:09}"


def checkpoint_dirs(run_dir: Path) -> Iterator[Path]:
    """Folders of a run's checkpoints, the latest first."""
    found = [path for path in run_dir.glob(f"{CHECKPOINTS_DIR}/step-*") if re.fullmatch(r"step-\d+", path.name)]
    yield from sorted(found, key=lambda path: int(path.name.removeprefix("step-")), reverse=True)


def read_checkpoint(folder: Path) -> tuple[Checkpoint, list[float]]:
    """A checkpoint and the losses of all steps so far. Raises UserError if a file is missing, damaged or invalid."""
    checkpoint = read_model(Checkpoint, folder / CHECKPOINT_FILE)
    try:
        sums = (folder / CHECKSUMS_FILE).read_bytes()
        expected = "".join(f"{_sha256(folder / name)}  {name}\n" for name in FILES)
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be read: {error.strerror}") from None
    if sums != expected.encode():
        raise UserError(f"{folder / CHECKSUMS_FILE}: does not match the files beside it; one of them is damaged")
    losses = read_arrays(folder / LOSSES_FILE).get("losses", np.zeros(0))
    if losses.dtype != np.float64 or losses.shape != (checkpoint.step,):
        raise UserError(
            f"{folder / LOSSES_FILE}: {losses.dtype} {losses.shape}, should be float64 ({checkpoint.step},)"
        )
    return checkpoint, losses.tolist()


def has_whole_checkpoint(run_dir: Path) -> bool:
    for folder in checkpoint_dirs(run_dir):
        with suppress(UserError):
            read_checkpoint(folder)
            return True
    return False


# --- Going on ---

# Kinds of options that may differ from those of the resumed run: they only change roundings.
MAY_DIFFER = (*UNTRAINED, "machine", "setting")


def find_checkpoint(experiment: Experiment) -> tuple[Path, TrainState] | None:
    """The latest complete checkpoint that `--resume` names, and its state; None if the run starts from scratch.

    Raises:
      UserError: there is no checkpoint, none is complete, or it belongs to another training.
    """
    config = experiment.config
    if config.resume is None:
        return None
    given = f"--resume {config.resume}"
    if config.resume == "auto":
        if config.run_dir is None:
            raise UserError(f"{given}: needs --run-dir, whose latest checkpoint it takes")
        candidates = list(checkpoint_dirs(config.run_dir))
        if not candidates:
            return None
    else:
        is_one = (config.resume / CHECKPOINT_FILE).exists()
        candidates = [config.resume] if is_one else list(checkpoint_dirs(config.resume))
        if not candidates:
            raise UserError(f"{given}: no checkpoint is there")
    reasons = []
    for folder in candidates:
        try:
            checkpoint, _ = read_checkpoint(folder)
            check_training(experiment, checkpoint)
            state = read_state(experiment, folder)
            if state.step != checkpoint.step:
                raise UserError("its files are of different steps")
        except UserError as error:
            reasons.append(f"{folder.name}: {error}")
        else:
            for reason in reasons:
                print(
                    f"note: continuing from {folder.name}, since a later checkpoint can't be used: {reason}",
                    file=sys.stderr,
                )
            return folder, state
    raise UserError(f"{given}: no checkpoint there can be used; {reasons[0]}")


def with_checkpoint(experiment: Experiment) -> Experiment:
    """The experiment, continued from the checkpoint that `--resume` names; its `resume` option is then that folder."""
    found = find_checkpoint(experiment)
    if found is None:
        return experiment
    folder, state = found
    plan = replace(experiment.plan, first_step=state.step + 1)
    return replace(experiment, config=experiment.config.replace(resume=folder), plan=plan, state=state)


def read_state(experiment: Experiment, folder: Path) -> TrainState:
    """The state in a checkpoint. Raises UserError if it can't be read or does not fit the network and update rule."""
    scaled = experiment.config.precision == "16-mixed"
    return TrainState.read(folder, experiment.network, experiment.update_rule, scaled)


def check_training(experiment: Experiment, checkpoint: Checkpoint) -> None:
    """Raises UserError if the checkpoint belongs to another training than `experiment`."""
    new, old = experiment.config, checkpoint.config
    kept = [name for name in TrainConfig.model_fields if name not in fields_of_kind(TrainConfig, *MAY_DIFFER)]
    for name in [*kept, "precision"]:
        if getattr(new, name) != getattr(old, name):
            raise UserError(f"was made with {option_name(name)} {getattr(old, name)}, not {getattr(new, name)}")
    if experiment.dataset.sha256 != checkpoint.data_sha256:
        raise UserError("was made with other data")
    plan, step = experiment.plan, checkpoint.step
    if step >= plan.total_steps or len(checkpoint.epochs) != step // plan.steps_per_epoch:
        raise UserError(f"its {len(checkpoint.epochs)} finished epochs do not fit step {step} of {plan.total_steps}")
