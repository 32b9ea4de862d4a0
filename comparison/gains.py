"""In words: what each framework costs as its documentation teaches it, and what tuning gives back."""

from collections.abc import Iterator, Sequence

from common.spec.options import Mode
from comparison.columns import in_rounds
from comparison.table import Entry, Table, speed_ratio


def what_tuning_gives(table: Table) -> list[str]:
    """A few sentences; none where the table does not have both modes of an implementation."""
    good = [entry for entry in table.entries if entry.row and entry.row.status in ("ok", "some failed")]
    both = [(plain, tuned) for plain in good for tuned in good if _same_but_tuned(plain, tuned)]
    gains = [f"{plain.name} {gain}" for plain, tuned in both if (gain := _gain(plain, tuned))]
    if not gains:
        return []
    return [
        *_fastest(good, "plain", "As its documentation teaches it"),
        f"Tuned over plain, images per second: {'; '.join(gains)}.",
        *_fastest(good, "tuned", "Tuned"),
    ]


def _same_but_tuned(plain: Entry, tuned: Entry) -> bool:
    return plain.implementation == tuned.implementation and (plain.mode, tuned.mode) == ("plain", "tuned")


def _gain(plain: Entry, tuned: Entry) -> str | None:
    """`1.50 times (1.41 to 1.60)`, over the same implementation's plain runs in the same rounds."""
    ratio, num_rounds = speed_ratio(plain, tuned)
    if ratio is None:
        return None
    if ratio.estimate is None:
        return f"{in_rounds(ratio.least, ratio.most, num_rounds)}, too few for a ratio"
    return f"{ratio.estimate:.2f} times ({ratio.low:.2f} to {ratio.high:.2f})"


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
