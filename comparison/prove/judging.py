"""Evaluates the proofs: whether two rows are the same training, and at which step they begin to differ."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from common.platform.errors import UserError
from common.platform.files import read_model
from common.record.results import (
    RESULT_FILE,
    EpochLine,
    RunResult,
    read_metrics,
    read_result,
    read_step_losses,
)
from comparison.lockstep import OTHER_SETTINGS, find_departure, loss_differences
from comparison.plan.jobs import Values
from comparison.prove.proof import FIRST_BATCH_DIR, PROOF_FILE, ProofRecord, proof_path
from comparison.run.store import LOG_FILE, Run

TOLERANCE = 1e-10  # of losses: relative above 1, absolute below; losses of equal trainings differ by about 1e-15


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


def check_complete(path: Path) -> None:
    """Raises UserError if the run of a proof is not complete: it must have all steps and evaluations of its plan."""
    plan, steps, epochs = read_result(path).plan, read_step_losses(path), read_metrics(path, EpochLine)
    if (len(steps), len(epochs)) != (plan.total_steps, plan.num_epochs):
        raise UserError(
            f"{path}: has {len(steps)} steps and {len(epochs)} evaluations, and should have {plan.total_steps} and"
            f" {plan.num_epochs}"
        )


def judge(folder: Path, variant: Values, reference: str, name: str, runs: Sequence[Run] = ()) -> Proof:
    """The proof of the row `name` against the row `reference` of a variant; not known if it does not fit `runs`."""
    proof = judge_folders(*(folder / proof_path(variant, row_name) for row_name in (reference, name)))
    if proof.same is not None and (note := is_of_others(folder, variant, runs)):
        return Proof(None, note=note)
    return proof


def is_of_others(folder: Path, variant: Values, runs: Sequence[Run]) -> str | None:
    """Why the proofs of a variant's rows do not fit `runs`; None if they do. Rows without a proof are not checked."""
    paths = {name: folder / proof_path(variant, name) for name in dict.fromkeys(run.record.name for run in runs)}
    try:
        proofs = {name: read_result(path) for name, path in paths.items() if (path / RESULT_FILE).exists()}
    except UserError as error:
        return str(error)
    for run in runs:
        proved, result = proofs.get(run.record.name), run.result
        if proved is None or result is None:
            continue
        differs = {
            "code": proved.code_sha256 != result.code_sha256,
            "versions": _software(proved) != _software(result),
        }
        if causes := [what for what in differs if differs[what]]:
            return (
                f"the proof of {run.record.title} was made with other {' and '.join(causes)} than its runs;"
                " a new comparison makes both again"
            )
    return None


def _software(result: RunResult) -> dict[str, str]:
    """The versions of the software, without that of the operating system."""
    return {name: version for name, version in result.versions.items() if name != "platform"}


def judge_folders(reference: Path, other: Path) -> Proof:
    """The proof from the folders of two runs in 64 bits."""
    try:
        for path in (reference, other):
            if failure := read_model(ProofRecord, path / PROOF_FILE, "there is no proof; ").failure:
                return Proof(None, note=f"the 64-bit run of {path.name} failed: {failure}; see {path / LOG_FILE}")
        departure = find_departure(reference, other, TOLERANCE)
        if departure is None:
            for path in (reference, other):
                check_complete(path)
        differences = loss_differences(read_step_losses(reference), read_step_losses(other))
    except UserError as error:
        return Proof(None, note=str(error))
    if departure and departure.startswith(OTHER_SETTINGS):
        return Proof(None, note=departure)
    difference = float(differences.max()) if len(differences) else None
    if departure:
        with suppress(UserError):  # there may be no second run that saved the first batch, or it has failed
            departure = find_departure(reference / FIRST_BATCH_DIR, other / FIRST_BATCH_DIR, TOLERANCE) or departure
    return Proof(departure is None, difference, departure)


def first_loss(folder: Path, variant: Values, name: str, seed: int) -> float | None:
    """The loss of step 1 in 64 bits; None if there is no proof with that seed."""
    path = folder / proof_path(variant, name)
    try:
        result, losses = read_result(path), read_step_losses(path)
    except UserError:
        return None
    return losses[0] if losses and result.config.seed == seed else None
