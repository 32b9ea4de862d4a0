"""What a comparison has found, in sentences: who trained how many times as fast as whom, and if it was the same."""

from collections.abc import Iterator, Sequence

from common.spec.options import Mode
from comparison.intervals import Ratio
from comparison.numbers import difference
from comparison.table import Entry, Table, speed_ratio


def conclusions(table: Table) -> list[str]:
    """A sentence each; none where fewer than two rows can be set side by side."""
    good = [entry for entry in table.entries if _counts(entry)]
    lines: list[str] = []
    modes: list[Mode] = ["plain", "tuned"]
    for mode in modes:
        lines += _fastest([entry for entry in good if entry.mode == mode])
    lines += [sentence for plain in good for tuned in good if (sentence := _tuning(plain, tuned))]
    if len(good) > 1:
        lines.append(_same_training(table, good))
    return lines


def _counts(entry: Entry) -> bool:
    """Whether its speed may be set beside others': not of another training."""
    return bool(entry.row and entry.row.status in ("ok", "some failed") and entry.row.speed.images_per_second)


def _fastest(entries: Sequence[Entry]) -> Iterator[str]:
    """The one with the highest median against each of the others, the nearest first."""
    if len(entries) < 2:
        return
    speeds = {entry.name: entry.row.speed.images_per_second or 0.0 for entry in entries if entry.row}
    first, *others = sorted(entries, key=lambda entry: -speeds[entry.name])
    for other in others:
        ratio, num_rounds = speed_ratio(other, first)
        if ratio:
            yield _times(first.title, other.title, ratio, num_rounds)


def _tuning(plain: Entry, tuned: Entry) -> str | None:
    """What tuning gives an implementation, over its own plain runs in the same rounds."""
    if plain.implementation != tuned.implementation or (plain.mode, tuned.mode) != ("plain", "tuned"):
        return None
    ratio, num_rounds = speed_ratio(plain, tuned)
    return _times(tuned.title, f"plain {plain.title}", ratio, num_rounds) if ratio else None


def _times(name: str, other: str, ratio: Ratio, num_rounds: int) -> str:
    """`PyTorch trained 1.13 times as fast as TensorFlow (1.06 to 1.18)`."""
    if ratio.estimate is None:
        found = " to ".join(dict.fromkeys((f"{ratio.least:.2f}", f"{ratio.most:.2f}")))
        rounds = f"{num_rounds} round{'s' if num_rounds > 1 else ''}"
        return f"{name} trained {found} times as fast as {other} in {rounds}, too few to be sure"
    if ratio.low is None or ratio.high is None:
        return f"{name} trained {ratio.estimate:.2f} times as fast as {other}"
    between = f"({ratio.low:.2f} to {ratio.high:.2f})"
    if ratio.verdict == "no difference shown":
        return f"{name} and {other}: no difference in speed is shown, {ratio.estimate:.2f} times {between}"
    if ratio.verdict == "slower":  # its median is higher, by runs of rounds in which the other has none
        between = f"({1 / ratio.high:.2f} to {1 / ratio.low:.2f})"
        return f"{other} trained {1 / ratio.estimate:.2f} times as fast as {name} {between}"
    return f"{name} trained {ratio.estimate:.2f} times as fast as {other} {between}"


def _same_training(table: Table, entries: Sequence[Entry]) -> str:
    answers = {entry.row.lockstep.same_training for entry in entries if entry.row and entry is not table.reference}
    if answers != {True}:
        return "same training: not proved"
    largest = max(entry.row.lockstep.proof_difference or 0.0 for entry in entries if entry.row)
    return f"same training: yes, proved in 64 bits: losses of the same step are at most {difference(largest)} apart"
