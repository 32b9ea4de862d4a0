"""In words: what each framework costs as its documentation teaches it, and what tuning gives back."""

from collections.abc import Iterator, Sequence

from common.spec.options import Mode
from comparison.intervals import paired_ratio
from comparison.table import Entry, Table, pairs


def what_tuning_gives(table: Table) -> list[str]:
    """A few sentences; none where the table does not have both modes of an implementation."""
    good = [entry for entry in table.entries if entry.row and entry.row.status in ("ok", "some failed")]
    both = [(plain, tuned) for plain in good for tuned in good if _same_but_tuned(plain, tuned) and pairs(plain, tuned)]
    if not both:
        return []
    gains = [f"{plain.name} {_gain(plain, tuned)}" for plain, tuned in both]
    return [
        *_fastest(good, "plain", "As its documentation teaches it"),
        f"Tuned over plain, images per second: {'; '.join(gains)}.",
        *_fastest(good, "tuned", "Tuned"),
    ]


def _same_but_tuned(plain: Entry, tuned: Entry) -> bool:
    return plain.implementation == tuned.implementation and (plain.mode, tuned.mode) == ("plain", "tuned")


def _gain(plain: Entry, tuned: Entry) -> str:
    """`1.50 times (1.41 to 1.60)`, over the same implementation's plain runs in the same rounds."""
    ratio = paired_ratio(*zip(*pairs(plain, tuned), strict=True))
    interval = "too few rounds for an interval"
    if ratio.low is not None and ratio.high is not None:
        interval = f"{ratio.low:.2f} to {ratio.high:.2f}"
    return f"{ratio.estimate:.2f} times ({interval})"


def _fastest(entries: Sequence[Entry], mode: Mode, when: str) -> Iterator[str]:
    speeds = {
        entry.implementation: entry.row.speed.images_per_second
        for entry in entries
        if entry.mode == mode and entry.row and entry.row.speed.images_per_second
    }
    if len(speeds) < 2:
        return
    first, *others = sorted(speeds, key=lambda name: -speeds[name])
    shares = ", ".join(f"{name} {speeds[name] / speeds[first]:.0%}" for name in others)
    yield f"{when}, {first} has the highest median speed; the others as shares of it: {shares}."
