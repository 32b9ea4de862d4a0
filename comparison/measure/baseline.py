"""The changes between an earlier comparison, the baseline, and this one."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from common.record.results import RunResult
from comparison.lockstep import different_settings
from comparison.measure.columns import shown
from comparison.measure.table import Row, Table
from comparison.numbers import RATIO, points, rate, span
from comparison.plan.jobs import variant_in_brackets
from comparison.prove.proof import Proof, judge_folders, proof_path
from comparison.ratios import Ratio, unpaired_ratio

BESIDE = "beside"  # the table of text of all changes


def changes_since_baseline(tables: Sequence[Table], earlier: Sequence[Table]) -> list["Change"]:
    """The change of each row with runs, in the order of the rows."""
    old = {(row.name, *row.variant.items()): row for table in reversed(earlier) for row in table.rows if row.runs}
    rows = (row for table in tables for row in table.rows if row.runs)
    return [Change(row, old.get((row.name, *row.variant.items()))) for row in rows]


@dataclass(frozen=True, eq=False)
class Change:
    """A row compared with the same row of an earlier comparison, which is None if it had no such row."""

    now: Row
    then: Row | None

    @property
    def title(self) -> str:
        return f"{self.now.title}{variant_in_brackets(self.now.variant)}"

    @property
    def is_comparable(self) -> bool:
        return self.then is not None and not self.settings

    @cached_property
    def _results(self) -> tuple[RunResult, RunResult, bool]:
        """A result of each, the earlier one first, and whether they have the same seed, as they have if any two do."""
        assert self.then
        for new in self.now.results:
            for old in self.then.results:
                if new.config.seed == old.config.seed:
                    return old, new, True
        return self.then.results[0], self.now.results[0], False

    @cached_property
    def settings(self) -> list[str]:
        """Why they are not the same experiment."""
        return different_settings(*self._results)

    @cached_property
    def proof(self) -> Proof:
        """Whether both are exactly the same training, as proved by the runs in 64 bits."""
        path = proof_path(self.now.variant, self.now.name)
        assert self.then
        return judge_folders(self.then.in_table.folder / path, self.now.in_table.folder / path)

    @cached_property
    def versions(self) -> list[str]:
        """How the versions of the software differ."""
        old, new, _ = self._results
        names = sorted({*old.versions, *new.versions})
        pairs = ((name, old.versions.get(name, "none"), new.versions.get(name, "none")) for name in names)
        return [f"{name} {before}, now {after}" for name, before, after in pairs if before != after]

    @property
    def code(self) -> tuple[str, str] | None:
        """The code then and now; None if it is the same."""
        old, new, _ = self._results
        if old.code != new.code:
            return old.code, new.code
        # With uncommitted changes, the code may differ although the commit is the same.
        return (old.code, "with other uncommitted changes") if old.code_sha256 != new.code_sha256 else None

    @cached_property
    def machines(self) -> list[str]:
        """How the machines differ."""
        old, new, _ = self._results
        changes = old.machine.differences(new.machine)
        if old.device_name != new.device_name:
            changes.append(f"device: {old.device_name} and {new.device_name}")
        if old.cpu_instructions != new.cpu_instructions:
            changes.append(f"instructions up to {old.cpu_instructions} and {new.cpu_instructions}")
        return changes

    @cached_property
    def _speeds(self) -> tuple[list[float], list[float]] | None:
        """Images per second of the runs then and now; None if speeds cannot be compared."""
        if self.then is None or self.machines:
            return None
        then, now = self.then.speeds, self.now.speeds
        return (then, now) if then and now else None

    @property
    def same_turns(self) -> bool:
        """Whether both trained in turns, or neither."""
        assert self.then
        return bool(self.now.measured_runs[0].turns) == bool(self.then.measured_runs[0].turns)

    @cached_property
    def speed_ratio(self) -> Ratio | None:
        return unpaired_ratio(*reversed(self._speeds)) if self._speeds else None

    # --- In a table, for rows that are comparable ---

    @shown("accuracy\npoints", BESIDE, form=points)
    def accuracy_change(self) -> float | None:
        assert self.then
        then, now = self.then.test_accuracy, self.now.test_accuracy
        return None if then is None or now is None else now - then

    @shown("images/s\nthen", BESIDE, form=rate)
    def speed_then(self) -> float | None:
        return median(self._speeds[0]) if self._speeds else None

    @shown("images/s\nnow", BESIDE, form=rate)
    def speed_now(self) -> float | None:
        return median(self._speeds[1]) if self._speeds else None

    @shown("\nratio", BESIDE, form=RATIO)
    def ratio(self) -> float | None:
        return self.speed_ratio and self.speed_ratio.estimate

    @shown("95 %\ninterval", BESIDE)
    def interval(self) -> str:
        return span(self.speed_ratio.low, self.speed_ratio.high) if self.speed_ratio else ""

    @shown("\nverdict", BESIDE)
    def verdict(self) -> str:
        return (self.speed_ratio and self.speed_ratio.verdict) or "none"

    @shown("same\ntraining", BESIDE)
    def same_training(self) -> str:
        return {True: "yes", False: "no", None: ""}[self.proof.same]
