"""Checkpoints: folders from which a run continues, in the same or another framework, on any number of devices.

`RUN/checkpoints/step-000000120` contains `state.safetensors` (`common.spec.state`), `losses.safetensors` (float64, of
all steps so far) and `checkpoint.json` (`Checkpoint`).
"""

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, Field

from common.experiment import Experiment
from common.platform.cli import as_typed, option_name
from common.platform.ending import STOP_SIGNALS
from common.platform.errors import UserError
from common.platform.files import (
    Count,
    Natural,
    read_json_model,
    read_safetensors,
    write_json_model,
    write_safetensors,
    writing,
)
from common.record.results import EpochLine
from common.spec.batches import Plan
from common.spec.options import UNTRAINED_KINDS, TrainConfig, options_of_kind
from common.spec.state import STATE_FILE, TrainState
from common.spec.update_rule import learning_rates

CHECKPOINTS_DIR = "checkpoints"
LOSSES_FILE, CHECKPOINT_FILE = "losses.safetensors", "checkpoint.json"
CHECKPOINTS_KEPT = 3  # the latest checkpoints of a run that stay


class Checkpoint(BaseModel, frozen=True, extra="forbid"):
    """The content of `checkpoint.json`: what a run had recorded when the checkpoint was made."""

    schema_version: Literal[1] = 1
    implementation: str  # that made it, such as `pt`
    config: TrainConfig
    data_sha256: str  # hex digest over the training and test arrays
    step: Count  # number of steps done
    epochs: list[EpochLine]  # the finished ones
    epoch_correct: Natural  # number of correct answers in the steps so far of the unfinished epoch
    epoch_seconds: float = Field(ge=0)  # training seconds of these steps


def write_checkpoint(run_dir: Path, checkpoint: Checkpoint, losses: Sequence[float], state: TrainState) -> None:
    """Writes a checkpoint under a temporary name, then renames it: it is complete or absent.

    Only the latest CHECKPOINTS_KEPT checkpoints stay, this one included.

    Raises FileError if the checkpoint can't be written.
    """
    folder = checkpoint_dir(run_dir, checkpoint.step)
    aside = folder.with_name(f".{folder.name}")
    try:
        with writing(folder):
            aside.mkdir(parents=True, exist_ok=True)
            write_safetensors(aside / STATE_FILE, state.to_arrays())
            write_safetensors(aside / LOSSES_FILE, {"losses": np.array(losses, np.float64)})
            write_json_model(aside / CHECKPOINT_FILE, checkpoint)
            if folder.exists():  # the run was resumed from an earlier checkpoint
                folder.rename(aside.with_name(f"{aside.name}.old"))
            aside.rename(folder)
    finally:
        for path in folder.parent.glob(".step-*"):  # also removes what a killed process has left
            shutil.rmtree(path, ignore_errors=True)
    for path in list(checkpoint_dirs(run_dir))[CHECKPOINTS_KEPT:]:
        shutil.rmtree(path, ignore_errors=True)


def checkpoint_dir(run_dir: Path, step: int) -> Path:
    return run_dir / CHECKPOINTS_DIR / f"step-{step:09}"


def checkpoint_dirs(run_dir: Path) -> Iterator[Path]:
    """Folders of a run's checkpoints, the latest first."""
    digits = "[0-9]" * 9  # a folder of another name is the user's
    yield from sorted(run_dir.glob(f"{CHECKPOINTS_DIR}/step-{digits}"), reverse=True)


def read_checkpoint(folder: Path) -> tuple[Checkpoint, list[float]]:
    """A checkpoint and the losses of all steps so far. Raises UserError if a file is missing or invalid."""
    checkpoint = read_json_model(Checkpoint, folder / CHECKPOINT_FILE)
    return checkpoint, read_safetensors(folder / LOSSES_FILE)["losses"].tolist()


# --- Going on ---

# Kinds of options that may differ from those of the resumed run: they only change roundings.
MAY_DIFFER = (*UNTRAINED_KINDS, "machine", "setting")
MAY_BE_LONGER = ("epochs", "max_steps")  # options that may differ, too, where the learning rates so far stay the same


def with_checkpoint(experiment: Experiment) -> Experiment:
    """The experiment, continued from the latest checkpoint that `--resume` names; without one as it is.

    Its `resume` option is then the checkpoint's folder.

    Raises UserError if there is no checkpoint, or it can't be read, or belongs to another training.
    """
    config = experiment.config
    if config.resume is None:
        return experiment
    given, run_dir = f"--resume {config.resume}", config.run_dir if config.resume == "auto" else config.resume
    if run_dir is None:
        raise UserError(f"{given}: needs --run-dir, whose latest checkpoint it takes")
    folder = run_dir if (run_dir / CHECKPOINT_FILE).exists() else next(checkpoint_dirs(run_dir), None)
    if folder is None:
        if config.resume == "auto":
            return experiment
        raise UserError(f"{given}: no checkpoint is there")
    try:
        checkpoint, _ = read_checkpoint(folder)
        check_training(experiment, checkpoint)
        state = read_checkpoint_state(experiment, folder / STATE_FILE)
    except UserError as error:
        raise UserError(f"{given}: {folder.name} can't be used: {error}") from None
    plan = replace(experiment.plan, first_step=state.step + 1)
    return replace(experiment, config=config.replace(resume=folder), plan=plan, state=state)


def read_checkpoint_state(experiment: Experiment, path: Path) -> TrainState:
    """The state in a file. Raises UserError if it can't be read or does not fit the network and update rule."""
    scaled = experiment.config.precision == "16-mixed"
    return TrainState.read(path, experiment.network, experiment.update_rule, scaled)


def _same_rates(experiment: Experiment, old: TrainConfig, step: int) -> bool:
    """Whether the learning rates until `step` are those of the configuration `old`."""
    before = learning_rates(old, old.plan(len(experiment.dataset.train_images)))[:step]
    return np.array_equal(np.array(before, np.float32), experiment.update_rule.learning_rates[:step])


def check_training(experiment: Experiment, checkpoint: Checkpoint) -> None:
    """Raises UserError if the checkpoint belongs to another training than `experiment`."""
    new, old = experiment.config, checkpoint.config
    kept = [name for name in TrainConfig.model_fields if name not in options_of_kind(TrainConfig, *MAY_DIFFER)]
    step = checkpoint.step
    for name in [*kept, "precision"]:
        if getattr(new, name) != getattr(old, name):
            if name in MAY_BE_LONGER and _same_rates(experiment, old, step):
                continue
            was, wanted = as_typed(getattr(old, name)), as_typed(getattr(new, name))
            why = f"; the learning rates of its steps depend on it (--schedule {old.schedule})"
            why *= name in MAY_BE_LONGER and new.schedule == old.schedule
            raise UserError(f"was made with {option_name(name)} {was}, not {wanted}{why}")
    if (new.initial_weights is None) != (old.initial_weights is None):  # the file may have been moved since
        was, wanted = as_typed(old.initial_weights), as_typed(new.initial_weights)
        raise UserError(f"was made with --initial-weights {was}, not {wanted}")
    if experiment.dataset.sha256 != checkpoint.data_sha256:
        raise UserError("was made with other data")
    if step >= experiment.plan.total_steps:
        raise UserError(f"its training is complete with step {step}; a larger --epochs trains it longer")


# --- When they are made ---

VOTE_SECONDS = 5.0  # approximate time between two votes of the processes


class Checkpointer:
    """Decides when checkpoints are made: at the requested steps, and when a signal asks the run to end.

    Each process of a run has one, and all must make a checkpoint after the same step. They agree on it when they fetch
    losses, which they do together: each process then reports whether it has received a signal.

    Attributes:
      every: number of steps between checkpoints, or "epoch"; None: no checkpoints.
      due: whether the training loop must save its state now.
      next_vote: the step after which the processes vote again.
    """

    def __init__(self, config: TrainConfig, plan: Plan, writes: bool) -> None:
        """`writes`: whether this process writes the files of the run."""
        self.every, self.plan, self.writes = config.checkpoint_every, plan, writes
        self.held: dict[int, float] = {}  # see `common.platform.ending.hold_signals`
        self.due, self.signal = False, 0
        self.next_vote = plan.first_step + 1
        self._looked = plan.first_step - 1
        self._voted, self._voted_at = plan.first_step, time.monotonic()

    def stops(self, done: int) -> list[int]:
        """The next steps, all after step `done`, after which the losses are needed."""
        if self.every is None:
            return []
        steps = [max(done + 1, self.next_vote)]
        return [*steps, (self._looked // self.every + 1) * self.every] if isinstance(self.every, int) else steps

    def votes(self, done: int) -> list[float]:
        """This process's vote: which signal it has received and, if it writes, the steps until the next vote."""
        if self.every is None:
            return []
        now, steps = time.monotonic(), max(1, done - self._voted)
        again = min(2 * steps, max(1, int(VOTE_SECONDS * steps / max(1e-9, now - self._voted_at))))
        self._voted, self._voted_at = done, now
        return [*(float(signal in self.held) for signal in STOP_SIGNALS), float(again if self.writes else 0)]

    def agree(self, done: int, votes: Sequence[float]) -> None:
        """Applies the result of a vote; `votes` are the sums of all processes' votes."""
        if self.every is None:
            return
        *received, steps = votes
        self.next_vote = done + int(steps)
        if any(received) and not self.signal:
            self.signal = STOP_SIGNALS[int(np.argmax(received))]

    def look(self, done: int, evaluated: bool = False) -> None:
        """Decides whether a checkpoint is due after step `done`, or after the evaluation that follows it.

        The checkpoint of an epoch's last step is made after the evaluation. The last step of a run has one, too, from
        which the run can be trained longer.
        """
        ends_epoch = done == self.plan.last_step(self.plan.epoch_of(done))
        if self.every is None or ends_epoch != evaluated:
            return
        is_last = done == self.plan.total_steps
        by_steps = isinstance(self.every, int) and done // self.every > self._looked // self.every
        self.due = bool(self.signal) or by_steps or is_last or (self.every == "epoch" and evaluated)
        self._looked = done
