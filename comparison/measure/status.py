"""`ProvedRow`: whether a row is the same training as the first one."""

from functools import cached_property
from typing import Literal

from common.spec.own_network import drops_by_itself
from comparison.lockstep import OF_EVALUATION
from comparison.measure.table import RunsOfRow, have_turns, paired_turns
from comparison.numbers import SHARE
from comparison.prove.audits import Audit, Audits, read_audits
from comparison.prove.learning import Fit, SmallSet, read_fit, read_small_set
from comparison.prove.proof import (
    CLOSER_DIR,
    FIRST_BATCH_DIR,
    SKIPPED_DIR,
    LossJump,
    Proof,
    find_jump,
    judge,
    proof_path,
    why_proof_does_not_fit,
)

Status = Literal[
    "ok", "failed", "some failed", "different training", "different evaluation", "not proved", "does not learn"
]
DIFFERENT_STATUSES: tuple[Status, ...] = ("different training", "different evaluation")


class ProvedRow(RunsOfRow):
    """What was proved and audited of a row, its status, and the notes that explain it."""

    # --- What was proved and audited ---

    @cached_property
    def small_set(self) -> SmallSet | None:
        if not len(self.runs):
            return None
        return read_small_set(self.in_table.folder, self.in_table.variant, self.name)

    @cached_property
    def fit(self) -> Fit | None:
        return read_fit(self.in_table.folder, self.in_table.variant, self.name, [*self.runs["run"]])

    @cached_property
    def proof(self) -> Proof:
        """That it is the first row's training; not known for the first row itself, and with `--verify never`."""
        table, first = self.in_table, self.in_table.reference
        if not table.verify or not len(self.runs) or first is None or self.is_reference:
            return Proof(None)
        return judge(table.folder, table.variant, first.name, self.name, [*first.runs["run"], *self.runs["run"]])

    @cached_property
    def audits(self) -> list[tuple[str, Audits]]:
        """Those of its runs that were audited, by name, with their audits; none with `--verify never`."""
        runs = self.runs["run"] if self.in_table.verify else ()
        names = ((run.run_dir, f"seed {run.record.seed}, round {run.record.round}") for run in runs)
        return [(name, found) for folder, name in names if (found := read_audits(folder))]

    @cached_property
    def wrong_audits(self) -> list[tuple[str, Audit]]:
        """The audits of its runs, in 64 bits and timed, that have found a difference, with the runs' names."""
        again = self.in_table.folder / proof_path(self.in_table.variant, self.name)
        names = {FIRST_BATCH_DIR: "64-bit run", CLOSER_DIR: "repeated run", SKIPPED_DIR: "repeated run"}
        folders = names.items() if self.in_table.verify else ()
        made = [(name, found) for folder, name in folders if (found := read_audits(again / folder))]
        return [(name, audit) for name, found in [*made, *self.audits] for audit in found.different]

    @cached_property
    def audit_failure(self) -> str | None:
        """What the audits of its runs have found wrong, for people; None if nothing.

        Replicas with different weights are wrong, too, with or without audits.
        """
        if not self.wrong_audits:
            runs = ((run.record, run.result.replicas_differ) for run in self.runs["run"])
            return next((f"seed {of.seed}, round {of.round}, {parted}" for of, parted in runs if parted), None)
        (where, audit), *others = self.wrong_audits
        return f"{where}, {audit.what}: {audit.note}{f' (and {len(others)} more audits)' if others else ''}"

    @cached_property
    def unexplained_jump(self) -> LossJump | None:
        """Where its losses suddenly part from the first row's; None if they don't, or if that was looked into.

        Nor where each framework draws random numbers of its own: losses differ anyway.
        """
        table, first = self.in_table, self.in_table.reference
        if first is None or self.proof.same is False or drops_by_itself(self.in_table.folder):
            return None
        looked_into = (table.folder / proof_path(table.variant, row.name) / CLOSER_DIR for row in (first, self))
        if all(map(read_audits, looked_into)):
            return None
        return next((jump for run, other in self.same_seed if (jump := find_jump(other, run))), None)

    # --- The status, and its notes ---

    @cached_property
    def judgement(self) -> tuple[Status, list[str]]:
        """The status, and notes for people, which explain it."""
        reference = self.in_table.reference
        if not len(self.runs) or reference is None:
            return "failed", [self._failures()]
        status: Status = "ok"
        notes = []
        if self.in_table.apart and self.is_reference:
            notes.append(f"not in the same table as the runs above: {self.in_table.apart}")
        if len(self.failed):
            status = "some failed"
            notes.append(self._failures())
        if note := self._does_not_learn():
            status = "does not learn"
            notes.append(note)
        proved, proof_notes = self._proved(reference)
        status = proved or status
        notes += [*proof_notes, *self._no_common_clock(reference)]
        if skipped := self.runs["skipped_steps"].fillna(0).max():
            notes.append(f"loss scaling skipped {skipped:.0f} of {self.results[0].num_steps} steps")
        if gone_on := self.runs["resumed_from"].notna().sum():
            notes.append(f"{gone_on} of {len(self.runs)} runs continued from a checkpoint; their times are left out")
        notes += dict.fromkeys(result.processor_note for result in self.results if result.processor_note)
        return status, notes

    def _proved(self, reference: "ProvedRow") -> tuple[Status | None, list[str]]:
        """The status that proofs and audits give a row, and their notes; no status if nothing is wrong."""
        proof = self.proof
        differently = f"it trains differently from {reference.title}"
        if self.audit_failure:
            only_evaluation = self.wrong_audits and all(audit.of_evaluation for _, audit in self.wrong_audits)
            wanted = "an audit in 64 bits says" if self.results[0].config.has_own_network else "the formulas say"
            notes = [f"it does not train as {wanted}, so no ratio is given: {self.audit_failure}"]
            if proof.same is False and not reference.audit_failure:
                notes.append(f"{differently}: {proof.note}")
            elif self.is_reference:
                rows = (row for row in self.in_table.rows if row.proof.same is False and not row.audit_failure)
                if right := next(rows, None):
                    notes.append(f"it trains differently from {right.title}: {right.proof.note}")
            return (
                "different evaluation" if only_evaluation and proof.same is not False else "different training",
                notes,
            )
        if reference.audit_failure:
            return "not proved", [
                f"no ratio is given, since {reference.title} trains differently; this row may be right"
            ]
        if proof.same is False:
            of_evaluation = (proof.note or "").startswith(OF_EVALUATION)
            status: Status = "different evaluation" if of_evaluation else "different training"
            return status, [f"{differently}, so no ratio is given: {proof.note}"]
        if proof.note:
            return "not proved", [
                f"no ratio is given, since it may train differently from {reference.title}: {proof.note}"
            ]
        table = self.in_table
        if table.verify and self.is_reference:
            note = why_proof_does_not_fit(table.folder, table.variant, [*self.runs["run"]])
            return ("not proved", [note]) if note else (None, [])
        return None, []

    def _no_common_clock(self, reference: "ProvedRow") -> list[str]:
        """Why the times of a row can't be compared with the first row's."""
        notes = []
        own, first = (row.results[0].warmup_steps for row in (self, reference))
        if own != first and not have_turns(paired_turns(reference, self)):
            notes.append(f"no ratio is given: its clock starts after step {own}, and {reference.title}'s after {first}")
        if self.is_off_the_clock:
            share, of_first = (f"{of.share_off_the_clock:{SHARE}}" for of in (self, reference))
            where = "is in neither training nor evaluation"
            notes.append(
                f"no ratio is given: {share} of the time of its epochs {where}, {of_first} of {reference.title}'s"
            )
        return notes

    def _failures(self) -> str:
        first, number = self.failed["failure"].iloc[0], len(self.failed)
        if len(self.runs):
            return f"{number} of {number + len(self.runs)} runs failed, the first one: {first}"
        return f"all {number} runs failed, the first one: {first}" if number > 1 else str(first)

    def _does_not_learn(self) -> str | None:
        """Why a row has the status "does not learn", for people; None if it does not have it."""
        own = self.small_set
        if own is None or own.steps is not None:
            return None
        able = [other.title for other in self.in_table.rows if other.small_set and other.small_set.steps is not None]
        look = f"{' and '.join(able)} did: look for a mistake in {self.title}"
        return f"it {own.found}; {look if able else 'no row did: look at the options first, such as the learning rate'}"

    @cached_property
    def has_no_ratio(self) -> bool:
        """For a row that may train differently or off the clock; for all rows if the reference trains differently."""
        return self.judgement[0] in (*DIFFERENT_STATUSES, "not proved") or self.is_off_the_clock
