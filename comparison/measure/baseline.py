"""The changes between an earlier comparison, the baseline, and this one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from common.record.results import RunResult
from comparison.intervals import Ratio, unpaired_ratio
from comparison.lockstep import different_settings
from comparison.measure.numbers import points
from comparison.measure.table import Entry, Table
from comparison.plan.jobs import in_brackets
from comparison.prove.judging import judge_folders
from comparison.prove.proof import proof_path

Folders = tuple[Path, Path]  # the folders of the earlier comparison and of this one


@dataclass
class Change:
    """A row compared with the same row of an earlier comparison; None means not known, or not comparable.

    Attributes:
      lines: all findings, a sentence each.
      accuracy, speed: earlier and now. Accuracies are shares, speeds are medians of images per second.
      same_training: whether both rows are the same training, by the proofs of both comparisons.
    """

    title: str
    lines: list[str] = field(default_factory=list)
    accuracy: tuple[float, float] | None = None
    speed: tuple[float, float] | None = None
    ratio: Ratio | None = None
    same_training: bool | None = None


def what_changed(tables: Sequence[Table], earlier: Sequence[Table], folders: Folders) -> list[Change]:
    """The change of each row, in the order of the rows."""
    changes = []
    for table in tables:
        for entry in table.entries:
            if not entry.runs:
                continue
            candidates = [
                one
                for old in earlier
                for one in old.entries
                if one.runs and one.name == entry.name and one.variant == entry.variant
            ]
            change = Change(f"{entry.title}{in_brackets(entry.variant)}")
            changes.append(change)
            if candidates:
                change.lines += _entry_changes(entry, candidates[0], folders, change)
            else:
                change.lines.append("not in the baseline")
    return changes


def _entry_changes(entry: Entry, old: Entry, folders: Folders, change: Change) -> Iterator[str]:
    """Yields the lines of the change, and fills in its other fields."""
    new_result, old_result, same_seed = _alike(entry, old)
    if settings := different_settings(old_result, new_result, same_seed):
        yield f"not the same experiment, so nothing is set side by side: {'; '.join(settings)}"
        return
    yield _training(entry, folders, change)
    yield _accuracy(entry, old, change)
    versions = _versions(old_result, new_result)
    machines = old_result.machine.differences(new_result.machine)
    if old_result.device_name != new_result.device_name:
        machines.append(f"device: {old_result.device_name} and {new_result.device_name}")
    if old_result.cpu_instructions != new_result.cpu_instructions:
        machines.append(f"instructions up to {old_result.cpu_instructions} and {new_result.cpu_instructions}")
    codes = old_result.code, new_result.code
    # With uncommitted changes, the code may differ although the commit is the same.
    code_changed = codes[0] != codes[1] or old_result.code_sha256 != new_result.code_sha256
    if versions:
        yield f"versions changed: {'; '.join(versions)}"
    if code_changed:
        now = codes[1] if codes[0] != codes[1] else "with other uncommitted changes"
        yield f"code changed: commit {codes[0]}, now {now}"
    if machines:
        yield f"the machine changed ({'; '.join(machines)}), so speeds are not compared"
        return
    yield _speed(entry, old, bool(versions), code_changed, change)


def _alike(entry: Entry, old: Entry) -> tuple[RunResult, RunResult, bool]:
    """A result of each, and whether they have the same seed, which they have if any two do."""
    new_results, old_results = ([run.result for run in one.runs if run.result] for one in (entry, old))
    for new in new_results:
        for before in old_results:
            if new.config.seed == before.config.seed:
                return new, before, True
    return new_results[0], old_results[0], False


def _training(entry: Entry, folders: Folders, change: Change) -> str:
    """Says whether both rows are exactly the same training, as proved by the runs in 64 bits."""
    earlier, now = (folder / proof_path(entry.variant, entry.name) for folder in folders)
    proof = judge_folders(earlier, now)
    change.same_training = proof.same
    if proof.same is None:
        return f"not known whether it is the same training: {proof.note or 'one of them has no run in 64 bits'}"
    if not proof.same:
        return f"not the same training: {proof.note}"
    largest = "" if proof.difference is None else f" (largest difference in a loss in 64 bits {proof.difference:.0e})"
    return f"the same training{largest}"


def _accuracy(entry: Entry, old: Entry, change: Change) -> str:
    assert entry.row and old.row
    now, before = entry.row.accuracy.test_accuracy, old.row.accuracy.test_accuracy
    assert now is not None and before is not None
    change.accuracy = before, now
    return f"accuracy {before:.2%}, now {now:.2%} ({points(before, now)} points)"


def _speed(entry: Entry, old: Entry, versions: bool, code: bool, change: Change) -> str:
    speeds, old_speeds = _speeds(entry), _speeds(old)
    if not speeds or not old_speeds:
        return "no speed to compare: it is not measured in both"
    ratio = change.ratio = unpaired_ratio(speeds, old_speeds)
    change.speed = median(old_speeds), median(speeds)
    turns = bool(entry.measured_runs[0].turns) != bool(old.measured_runs[0].turns)
    changes = (("versions", versions), ("code", code), ("--turns", turns))
    changed = [name for name, true in changes if true] or ["nothing that is recorded"]
    if ratio.estimate is None:
        found = f"{ratio.least:.2f} to {ratio.most:.2f} times the baseline's, by single runs, too few for a ratio"
    elif ratio.low is None or ratio.high is None:
        found = f"{ratio.estimate:.2f} times the baseline's, without spread for an interval"
    else:
        interval = f"95 % interval {ratio.low:.2f} to {ratio.high:.2f}"
        found = f"{ratio.estimate:.2f} times the baseline's, {interval}: {ratio.verdict}"
    return f"speed {found}; changed since then: {', '.join(changed)}; the machine's load may differ too"


def _speeds(entry: Entry) -> list[float]:
    return [run.images_per_second for run in entry.measured_runs if run.images_per_second]


def _versions(old: RunResult, new: RunResult) -> list[str]:
    names = sorted({*old.versions, *new.versions})
    pairs = ((name, old.versions.get(name, "none"), new.versions.get(name, "none")) for name in names)
    return [f"{name} {before}, now {after}" for name, before, after in pairs if before != after]
