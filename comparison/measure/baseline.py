"""The changes between an earlier comparison, the baseline, and this one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from common.record.results import RunResult
from comparison.intervals import Ratio, unpaired_ratio
from comparison.lockstep import different_settings
from comparison.measure.columns import shown
from comparison.measure.table import Row, Table
from comparison.numbers import ACCURACY, DIFFERENCE, RATIO, between, points, rate, span, text
from comparison.plan.jobs import in_brackets
from comparison.prove.judging import Proof, judge_folders
from comparison.prove.proof import proof_path

BESIDE = "beside"  # the table of text of all changes


def what_changed(tables: Sequence[Table], earlier: Sequence[Table]) -> list["Change"]:
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
        return f"{self.now.title}{in_brackets(self.now.variant)}"

    @property
    def is_comparable(self) -> bool:
        return self.then is not None and not self._settings

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
    def _settings(self) -> list[str]:
        """Why they are not the same experiment."""
        return different_settings(*self._results)

    @cached_property
    def _proof(self) -> Proof:
        """Whether both are exactly the same training, as proved by the runs in 64 bits."""
        path = proof_path(self.now.variant, self.now.name)
        assert self.then
        return judge_folders(self.then.in_table.folder / path, self.now.in_table.folder / path)

    @cached_property
    def _machines(self) -> list[str]:
        """How the machines differ."""
        old, new, _ = self._results
        found = old.machine.differences(new.machine)
        if old.device_name != new.device_name:
            found.append(f"device: {old.device_name} and {new.device_name}")
        if old.cpu_instructions != new.cpu_instructions:
            found.append(f"instructions up to {old.cpu_instructions} and {new.cpu_instructions}")
        return found

    @cached_property
    def _speeds(self) -> tuple[list[float], list[float]] | None:
        """Images per second of the runs then and now; None if speeds cannot be compared."""
        if self.then is None or self._machines:
            return None
        then, now = self.then.speeds, self.now.speeds
        return (then, now) if then and now else None

    @cached_property
    def _ratio(self) -> Ratio | None:
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
        return self._ratio and self._ratio.estimate

    @shown("95 %\ninterval", BESIDE)
    def interval(self) -> str:
        return span(self._ratio.low, self._ratio.high) if self._ratio else ""

    @shown("\nverdict", BESIDE)
    def verdict(self) -> str:
        return (self._ratio and self._ratio.verdict) or "none"

    @shown("same\ntraining", BESIDE)
    def same_training(self) -> str:
        return {True: "yes", False: "no", None: ""}[self._proof.same]

    # --- In words ---

    def lines(self) -> Iterator[str]:
        """All findings, a sentence each."""
        if self.then is None:
            yield "not in the baseline"
            return
        if self._settings:
            yield f"not the same experiment, so nothing is set side by side: {'; '.join(self._settings)}"
            return
        old, new, _ = self._results
        yield self._about_training()
        yield (
            f"accuracy {text(self.then.test_accuracy, ACCURACY)}, now {text(self.now.test_accuracy, ACCURACY)}"
            f" ({text(self.accuracy_change, points)} points)"
        )
        versions = _versions(old, new)
        # With uncommitted changes, the code may differ although the commit is the same.
        code = old.code != new.code or old.code_sha256 != new.code_sha256
        if versions:
            yield f"versions changed: {'; '.join(versions)}"
        if code:
            now = new.code if old.code != new.code else "with other uncommitted changes"
            yield f"code changed: commit {old.code}, now {now}"
        if self._machines:
            yield f"the machine changed ({'; '.join(self._machines)}), so speeds are not compared"
            return
        yield self._about_speed(bool(versions), code)

    def _about_training(self) -> str:
        proof = self._proof
        if proof.same is None:
            return f"not known whether it is the same training: {proof.note or 'one of them has no run in 64 bits'}"
        if not proof.same:
            return f"not the same training: {proof.note}"
        known = proof.difference is not None
        largest = f" (largest difference in a loss in 64 bits {proof.difference:{DIFFERENCE}})" if known else ""
        return f"the same training{largest}"

    def _about_speed(self, versions: bool, code: bool) -> str:
        ratio = self._ratio
        if ratio is None or self.then is None:
            return "no speed to compare: it is not measured in both"
        turns = bool(self.now.measured_runs[0].turns) != bool(self.then.measured_runs[0].turns)
        changes = (("versions", versions), ("code", code), ("--turns", turns))
        changed = [name for name, true in changes if true] or ["nothing that is recorded"]
        if ratio.estimate is None:
            found = f"{between(ratio.least, ratio.most)} times the baseline's, by single runs, too few for a ratio"
        elif ratio.low is None or ratio.high is None:
            found = f"{ratio.estimate:{RATIO}} times the baseline's, without spread for an interval"
        else:
            interval = f"95 % interval {between(ratio.low, ratio.high)}"
            found = f"{ratio.estimate:{RATIO}} times the baseline's, {interval}: {ratio.verdict}"
        return f"speed {found}; changed since then: {', '.join(changed)}; the machine's load may differ too"


def _versions(old: RunResult, new: RunResult) -> list[str]:
    names = sorted({*old.versions, *new.versions})
    pairs = ((name, old.versions.get(name, "none"), new.versions.get(name, "none")) for name in names)
    return [f"{name} {before}, now {after}" for name, before, after in pairs if before != after]
