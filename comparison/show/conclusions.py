"""The conclusions of a comparison, in sentences: ratios of speeds, and whether all rows are the same training."""

from collections.abc import Iterator, Sequence

from common.spec.options import Mode
from comparison.intervals import Ratio
from comparison.measure.noise import why_not_measured
from comparison.measure.numbers import difference, rate
from comparison.measure.sweep import Study, StudyRow
from comparison.measure.table import Entry, Table, speed_ratio
from comparison.prove.learning import Learned

PROOF = "same training"  # how the sentence about the proof begins
LEARNED: dict[Learned, str] = {
    "fits": "neither under- nor overfitting",
    "underfits": "underfitting",
    "overfits": "overfitting",
    "learns nothing": "nothing learned",
}


def conclusions(table: Table) -> list[str]:
    """The conclusions of a table, one sentence each; if several rows can be compared, the last is about the proof."""
    alike = [entry for entry in table.entries if entry.row and entry.row.status in ("ok", "some failed")]
    good = [entry for entry in alike if _has_speed(entry)]
    lines: list[str] = []
    unmeasured = [entry for entry in table.entries if entry.runs and not _has_speed(entry)]
    if why := why_not_measured(unmeasured):
        lines.append(f"{', '.join(entry.title for entry in unmeasured)}: speed not measured: {why}")
    modes: list[Mode] = ["plain", "tuned"]
    for mode in modes:
        lines += _fastest([entry for entry in good if entry.mode == mode])
    lines += [sentence for plain in good for tuned in good if (sentence := _tuning(plain, tuned))]
    if len(alike) > 1:
        lines.append(_same_training(table, alike))
    return lines


def _has_speed(entry: Entry) -> bool:
    return bool(entry.row and entry.row.speed.images_per_second)


def _fastest(entries: Sequence[Entry]) -> Iterator[str]:
    """Compares the entry with the highest median speed with each of the others, the next fastest first."""
    if len(entries) < 2:
        return
    speeds = {entry.name: entry.row.speed.images_per_second or 0.0 for entry in entries if entry.row}
    first, *others = sorted(entries, key=lambda entry: -speeds[entry.name])
    for other in others:
        ratio, num_rounds = speed_ratio(other, first)
        if ratio:
            yield _times(first.title, other.title, ratio, num_rounds)


def _tuning(plain: Entry, tuned: Entry) -> str | None:
    """The gain by tuning, compared with plain runs of the same implementation in the same rounds; None if not known."""
    if plain.implementation != tuned.implementation or (plain.mode, tuned.mode) != ("plain", "tuned"):
        return None
    ratio, num_rounds = speed_ratio(plain, tuned)
    return _times(tuned.title, f"plain {plain.title}", ratio, num_rounds) if ratio else None


def _times(name: str, other: str, ratio: Ratio, num_rounds: int) -> str:
    """`PyTorch trained 1.13 times as fast as TensorFlow (1.06 to 1.18)`."""
    if ratio.estimate is None:
        found = _least_to_most(ratio)
        rounds = f"{num_rounds} round{'s' if num_rounds > 1 else ''}"
        return f"{name} trained {found} times as fast as {other} in {rounds}, too few to be sure"
    if ratio.low is None or ratio.high is None:
        return f"{name} trained {ratio.estimate:.2f} times as fast as {other}"
    # A tuned row may be slower; so may the row with the highest median, if the other row lacks some of its rounds.
    if ratio.verdict == "slower":
        name, other, ratio = other, name, ratio.inverse()
    of_these = "; of these processes, others may differ" if ratio.of_these_processes else ""
    interval = f"({ratio.low:.2f} to {ratio.high:.2f}{of_these})"
    if ratio.verdict == "no difference shown":
        return f"{name} and {other}: no significant difference in speed: ratio {ratio.estimate:.2f} {interval}"
    return f"{name} trained {ratio.estimate:.2f} times as fast as {other} {interval}"


def _least_to_most(ratio: Ratio) -> str:
    """`1.05 to 1.21`, or one number if both are the same."""
    return " to ".join(dict.fromkeys((f"{ratio.least:.2f}", f"{ratio.most:.2f}")))


def _same_training(table: Table, entries: Sequence[Entry]) -> str:
    answers = {entry.row.lockstep.same_training for entry in entries if entry.row and entry is not table.reference}
    if answers != {True}:
        return f"{PROOF}: not proved"
    largest = max(entry.row.lockstep.proof_difference or 0.0 for entry in entries if entry.row)
    return f"{PROOF}: yes, proved in 64 bits: losses of the same step are at most {difference(largest)} apart"


def learning_conclusions(table: Table) -> list[str]:
    """What `--check-learning` has found; none where it was not asked for."""
    found: dict[str, list[str]] = {}
    for row in table.rows:
        learning = row.learning
        if learning.small_set_steps is not None:
            steps = f"learned {learning.small_set_count} training images by heart in {learning.small_set_steps} steps"
            found.setdefault(steps, []).append(row.title)
    for row in table.rows:
        if row.learning.learning:
            words = f"{LEARNED[row.learning.learning]}: {row.learning.learning_note}"
            found.setdefault(words, []).append(row.title)
    return [f"{', '.join(titles)}: {words}" for words, titles in found.items()]


# --- Of a sweep ---


def study_conclusions(study: Study) -> list[str]:
    """A sentence for each line of the charts, then the fastest row for each value, then whether all train the same."""
    lines = []
    for series in dict.fromkeys(one.series for one in study.rows):
        members = [one for one in study.rows if one.series == series and one.row.speed.images_per_second]
        if study.kind == "devices":
            lines += [_scaled(study, one) for one in members[-1:] if one.speed_up and one.ideal and one.ideal > 1]
        elif len(members) > 1:
            lines.append(f"{series}: {_extremes(study.option, members)}")
    lines += _fastest_by_value(study)
    answers = [one.row.lockstep.same_training for one in study.rows]
    if (
        True in answers
        and not {False} & {*answers}
        and all(one.row.status in ("ok", "some failed") for one in study.rows)
    ):
        largest = max(one.row.lockstep.proof_difference or 0.0 for one in study.rows)
        lines.append(f"same training: yes, proved in 64 bits for each: losses are at most {difference(largest)} apart")
    return lines


def _scaled(study: Study, one: StudyRow) -> str:
    """`PyTorch, strong: 1.74 times as fast with 2 devices (1.70 to 1.78), 87% of the ideal`; or `on 2 nodes`."""
    assert one.speed_up
    efficiency = " to ".join(dict.fromkeys(f"{share:.0%}" for share in one.efficiencies))
    if one.speed_up.estimate is None:
        times = _least_to_most(one.speed_up)
        between = ", in too few rounds to be sure"
    else:
        times, between = f"{one.speed_up.estimate:.2f}", ""
        if one.speed_up.low is not None and one.speed_up.high is not None:
            between = f" ({one.speed_up.low:.2f} to {one.speed_up.high:.2f})"
    where = f"on {one.x} nodes" if study.option == "num-nodes" else f"with {one.x} devices"
    return f"{one.series}: {times} times as fast {where}{between}, {efficiency} of the ideal"


def _extremes(option: str, members: Sequence[StudyRow]) -> str:
    """The values at which one line of a chart has its highest and lowest speed, and its highest and lowest accuracy."""
    by_speed = sorted(members, key=lambda one: one.row.speed.images_per_second or 0.0)
    slowest, fastest = by_speed[0], by_speed[-1]
    said = f"fastest with {option} {fastest.x} ({rate(fastest.row.speed.images_per_second)} images/s)"
    said += f", slowest with {slowest.x} ({rate(slowest.row.speed.images_per_second)})"
    by_accuracy = sorted(members, key=lambda one: one.row.accuracy.test_accuracy or 0.0)
    least, most = (f"{one.row.accuracy.test_accuracy or 0.0:.2%}" for one in (by_accuracy[0], by_accuracy[-1]))
    if least == most:
        return f"{said}; test accuracy {most} with each"
    return f"{said}; test accuracy from {least} ({by_accuracy[0].x}) to {most} ({by_accuracy[-1].x})"


def _fastest_by_value(study: Study) -> list[str]:
    """`highest median speed: PyTorch with devices 1, Lightning with 2`; empty for a single implementation and mode."""
    best: dict[str, list[str]] = {}
    if len({one.row.title for one in study.rows}) < 2:
        return []
    for x in dict.fromkeys(one.x for one in study.rows):
        known = [one for one in study.rows if one.x == x and one.row.speed.images_per_second]
        if known:
            first = max(known, key=lambda one: one.row.speed.images_per_second or 0.0)
            best.setdefault(first.row.title, []).append(x)
    said = [f"{title} with {study.option} {', '.join(values)}" for title, values in best.items()]
    if len(said) == 1:
        said = [f"{next(iter(best))}, with each value of {study.option}"]
    return [f"highest median speed: {'; '.join(said)}"] if said else []
