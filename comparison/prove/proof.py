"""Proofs that rows are the same training: the runs of a proof, which `prover.py` makes, and the verdict on them.

Each implementation takes the first steps with `--precision 64`, and evaluates. Configuration, code path and number of
devices are exactly those of its row. If several proofs run at the same time, each has one thread.

No fixed bound on 32-bit losses could tell rounding from a mistake: their differences grow with every step, sometimes
from 1e-7 to 1e-3 within ten steps. In 64 bits the differences begin a billion times smaller. Over so few steps they
mostly stay far below `LOSS_TOLERANCE`. Where they don't, both runs are made again, and each of their steps is audited:
either a step is wrong, or all are right, and rounding has grown.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel

from common.data.datasets import Dataset
from common.experiment import Experiment
from common.platform.errors import UserError
from common.platform.files import read_json_model
from common.record.results import RESULT_FILE, EpochLine, read_metrics, read_result, read_step_losses
from common.spec.batches import EVAL_BATCH_SIZE
from common.spec.options import TrainConfig
from comparison.lockstep import OTHER_SETTINGS, find_departure, find_loss_jump, loss_differences
from comparison.plan.jobs import Contender, Job, Variant, VariantValues, row_path
from comparison.prove.audits import audited_steps_around, read_audits
from comparison.run.store import LOG_FILE, Run

PROOF_FILE = "proof.json"
FIRST_BATCH_DIR = "first-batch"  # of the second proofs that are made if two trainings differ
CLOSER_DIR = "closer"  # of runs that are made once more, with audits where the losses of two rows suddenly part
SKIPPED_DIR = "skipped"  # of runs that are made once more, with audits of the steps that loss scaling skipped
MOST_STEPS, LEAST_STEPS = 20, 5  # fewer if a step takes long; all but the first step come after an update
MOST_FLOPS = 5e10  # limit for all steps together, and for all evaluations: some seconds on two cores
LOSS_TOLERANCE = 1e-10  # of losses: relative above 1, absolute below; losses of equal trainings differ by about 1e-15
OWN_TOLERANCE = 1e-6  # in a network of the user's, of which a framework may compute parts in 32 bits: docs/porting.md
PASSES_PER_STEP = 3  # a step costs a forward pass, and a backward pass that costs about twice as much


# --- The runs ---


@dataclass(frozen=True)
class ProofJob(Job):
    """The first steps of one row in 64 bits. `data_sha256`: digest of the data set."""

    data_sha256: str

    @property
    def path(self) -> Path:
        return proof_path(dict(self.variant.values), self.name)


class ProofRecord(BaseModel, frozen=True, extra="forbid"):
    """`proof.json`, beside the files of the run in 64 bits.

    Attributes:
      digest: over configuration, data, code and versions; a proof with the same digest is not made again.
      failure: why there is no result; None if there is one.
    """

    schema_version: Literal[2]
    digest: str
    failure: str | None


def proof_path(variant: VariantValues, name: str) -> Path:
    """The folder of a row's run in 64 bits, relative to the comparison's folder."""
    return row_path("proofs", variant, name)


def proof_jobs(variants: Sequence[Variant], contenders: Sequence[Contender], seed: int) -> list[ProofJob]:
    """One proof for each row, with the first seed alone: other seeds run the same code."""
    jobs = []
    for variant in variants:
        experiment = Experiment.make(variant.config.replace(seed=seed))
        flops = experiment.network.flops_per_image
        flops_per_step = PASSES_PER_STEP * flops * variant.config.examples_per_step
        steps = max(LEAST_STEPS, min(MOST_STEPS, int(MOST_FLOPS / flops_per_step)))
        cut = _cut_evaluation(variant.config.replace(verify_steps=steps), experiment.dataset, flops)
        for implementation, mode in contenders:
            changes = {"precision": "64", "verify_steps": steps, "seed": seed, "mode": mode, "log_every_n_steps": steps}
            config = variant.config.made_for("side run", **changes, **cut)
            jobs.append(ProofJob(variant, implementation, seed, 1, False, config, experiment.dataset.sha256))
    return jobs


def _cut_evaluation(config: TrainConfig, dataset: Dataset, flops: int) -> dict[str, int]:
    """Options for a smaller test set, if evaluating the whole test set takes long; else empty.

    The smaller test set has as many images as two steps' batches, and a remainder. With the remainder, its size is
    divisible by the number of devices if and only if the size of the whole test set is.

    Args:
      flops: of a forward pass of one image.
    """
    count, size = len(dataset.test_images), min(config.batch_size, EVAL_BATCH_SIZE)
    plan = config.plan(len(dataset.train_images))
    evaluations = plan.num_epochs + 1  # one more for the predictions of the report
    if evaluations * count * flops <= MOST_FLOPS:
        return {}
    devices = 1 if config.devices == "auto" else config.devices
    kept = 2 * size + (count - 2 * size) % devices
    if count % EVAL_BATCH_SIZE and kept % EVAL_BATCH_SIZE == 0:
        kept += devices  # the last batch stays incomplete, as in the whole test set
    return {"test_size": kept} if kept < count else {}


# --- The verdict: whether two rows are the same training, and at which step they begin to differ ---


@dataclass(frozen=True)
class Proof:
    """The result of comparing a row's run in 64 bits with that of the table's first row.

    Attributes:
      same: whether they are the same training; None if that is not known.
      difference: the largest difference in the loss of a step; None if there are no losses to compare.
      note: at which step they begin to differ, or why it is not known whether they are the same training.
    """

    same: bool | None
    difference: float | None = None
    note: str | None = None


def check_proof_complete(path: Path) -> None:
    """Raises UserError if the run of a proof is not complete: it must have all steps and evaluations of its plan."""
    plan, steps, epochs = read_result(path).plan, read_step_losses(path), read_metrics(path, EpochLine)
    if (len(steps), len(epochs)) != (plan.total_steps, plan.num_epochs):
        raise UserError(
            f"{path}: has {len(steps)} steps and {len(epochs)} evaluations, and should have {plan.total_steps} and"
            f" {plan.num_epochs}"
        )


def judge(folder: Path, variant: VariantValues, reference: str, name: str, runs: Sequence[Run] = ()) -> Proof:
    """The proof of the row `name` against the row `reference` of a variant; not known if it does not fit `runs`."""
    proof = _judge_folders(*(folder / proof_path(variant, row_name) for row_name in (reference, name)))
    if proof.same is not None and (note := why_proof_does_not_fit(folder, variant, runs)):
        return Proof(None, note=note)
    return proof


def why_proof_does_not_fit(folder: Path, variant: VariantValues, runs: Sequence[Run]) -> str | None:
    """Why the proofs of a variant's rows do not fit `runs`; None if they do. Rows without a proof are not checked."""
    paths = {name: folder / proof_path(variant, name) for name in {run.record.name for run in runs}}
    try:
        proofs = {name: read_result(path) for name, path in paths.items() if (path / RESULT_FILE).exists()}
    except UserError as error:
        return str(error)
    for run in runs:
        proved, result = proofs.get(run.record.name), run.result
        if proved is None or result is None:
            continue
        versions, of_run = ({**of.versions, "platform": ""} for of in (proved, result))  # the platform does not count
        differs = {"code": proved.code_sha256 != result.code_sha256, "versions": versions != of_run}
        if causes := [what for what in differs if differs[what]]:
            return (
                f"the proof of {run.record.title} was made with other {' and '.join(causes)} than its runs;"
                " a new comparison makes both again"
            )
    return None


def _judge_folders(reference: Path, other: Path) -> Proof:
    """The proof from the folders of two runs in 64 bits."""
    try:
        for path in (reference, other):
            if failure := read_json_model(ProofRecord, path / PROOF_FILE, "there is no proof; ").failure:
                return Proof(None, note=f"the 64-bit run of {path.name} failed: {failure}; see {path / LOG_FILE}")
        tolerance = OWN_TOLERANCE if read_result(reference).config.has_own_network else LOSS_TOLERANCE
        departure = find_departure(reference, other, tolerance)
        if departure is None:
            for path in (reference, other):
                check_proof_complete(path)
        differences = loss_differences(read_step_losses(reference), read_step_losses(other))
    except UserError as error:
        return Proof(None, note=str(error))
    if departure and departure.startswith(OTHER_SETTINGS):
        return Proof(None, note=departure)
    difference = float(differences.max()) if len(differences) else None
    if departure is None:
        return Proof(True, difference)
    again = reference / FIRST_BATCH_DIR, other / FIRST_BATCH_DIR
    with suppress(UserError):  # there may be no second runs, or one of them has failed
        steps = read_result(other).num_steps
        audits = [read_audits(path) for path in again]
        if departure.startswith("step ") and all(of_row and of_row.proves(steps) for of_row in audits):
            return Proof(True, difference)  # every step is right, and rounding has grown from step to step
        departure = find_departure(*again, tolerance) or departure
    return Proof(False, difference, departure)


class LossJump(NamedTuple):
    """The step at which the losses of another row's run suddenly part from those of the first row's."""

    first: Run
    run: Run
    step: int

    @property
    def audited_steps(self) -> tuple[int, ...]:
        assert self.run.result
        return audited_steps_around(self.run.result.plan, self.step)


def find_jump(first: Run, other: Run) -> LossJump | None:
    """Where two runs of the same seed suddenly part; None if they don't."""
    assert first.result and other.result
    plan = first.result.plan
    of_first, of_other = ({plan.last_step(line.epoch): line.test_loss for line in run.epochs} for run in (first, other))
    configs = first.result.config, other.result.config
    step = find_loss_jump((first.losses, other.losses), (of_first, of_other), configs)
    return LossJump(first, other, step) if step else None
