"""The first screen of the report: the findings, how reliable they are, what to do next, and a table to decide by."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from comparison.columns import plus_minus, same_training
from comparison.conclusions import conclusions, learning_conclusions
from comparison.intervals import MIN_ROUNDS
from comparison.numbers import mebibytes, rate, seconds, text
from comparison.report.code_lines import lines_of_training
from comparison.row import Row
from comparison.summary import Summary
from comparison.table import Table

DIR = "DIR is the folder of this page"  # not its path: the folder may be moved
Number = Callable[[Row], float | None]


@dataclass(frozen=True)
class Finding:
    """A question that a reader has, and the answers, a sentence each."""

    question: str
    answers: list[str]


@dataclass(frozen=True)
class Cell:
    """A cell of the table to decide by.

    Attributes:
      shown: the text; empty if the value is not known.
      value: for sorting; None if it is not known.
      share: compared with the best value: 1 for the best, less for the others; None if there is nothing to compare.
    """

    shown: str
    value: float | None
    share: float | None


@dataclass(frozen=True)
class Decision:
    """The table to decide by: headings with their meanings, and a line for each row."""

    headings: list[tuple[str, str]]
    lines: list[tuple[str, list[Cell], bool]]


# --- In words ---


def findings(summary: Summary, table: Table) -> list[Finding]:
    """The questions and answers for a table; an empty list if no row has a speed."""
    rows = [row for row in table.rows if row.speed.images_per_second]
    if not rows:
        return []
    said = conclusions(table)  # the last sentence is about the proof
    found = [
        Finding("Which is fastest?", said[:-1] or ["Nothing to compare: only one row has a speed."]),
        Finding("Which starts fastest?", _least(rows, _startup, seconds, "s")),
        Finding("Which needs the least memory?", _least(rows, _memory, _mebibytes, "MiB")),
        Finding("Was it the same training?", [*said[-1:], *_accuracies(rows)]),
        Finding("Does it learn?", learning_conclusions(table)),
        Finding("How reliable is this?", [_trust(summary, rows)]),
        Finding("What next?", [_next_step(summary, rows)]),
    ]
    return [one for one in found if one.answers]


def _least(rows: Sequence[Row], number: Number, shown: Callable[[float], str], unit: str) -> list[str]:
    """`PyTorch, 2.0 s (Lightning 5.1, TensorFlow 3.3)`."""
    known = [(value, row.title) for row in rows if (value := number(row)) is not None]
    if len(known) < 2:
        return []
    (least, first), *others = sorted(known)
    return [f"{first}, {shown(least)} {unit} ({', '.join(f'{name} {shown(value)}' for value, name in others)})."]


def _accuracies(rows: Sequence[Row]) -> list[str]:
    known = [row.accuracy.test_accuracy for row in rows if row.accuracy.test_accuracy is not None]
    if not known:
        return []
    low, high = min(known), max(known)
    return [f"Test accuracy: {' to '.join(dict.fromkeys((f'{low:.2%}', f'{high:.2%}')))}."]


def _trust(summary: Summary, rows: Sequence[Row]) -> str:
    rounds, disturbed = max(row.speed.num_rounds for row in rows), max(row.speed.num_disturbed for row in rows)
    seeds = max(row.accuracy.num_seeds for row in rows)
    said = [f"{rounds} round{'s' if rounds != 1 else ''} of pairs on one machine"]
    said += [f"{disturbed} more were disturbed by other programs"] if disturbed else []
    said += [f"{seeds} seeds"] if seeds > 1 else ["one seed, so accuracy has no spread"]
    if rounds < MIN_ROUNDS:
        return f"Not very: {', '.join(said)}. Ratios need {MIN_ROUNDS} undisturbed rounds."
    count = len(summary.warnings)
    read = f" Read the {count} warning{'s' if count > 1 else ''} below first." if count else ""
    return f"{'; '.join(said)}. The ranges in brackets are 95 % intervals.{read}"


def _next_step(summary: Summary, rows: Sequence[Row]) -> str:
    if max(row.speed.num_rounds for row in rows) < MIN_ROUNDS:
        return f"python compare.py --resume DIR --repeats 5 makes more rounds; {DIR}."
    if any(row.speed.verdict == "no difference shown" for row in rows):
        return (
            f"Where no difference is shown, more rounds may tell: python compare.py --resume DIR --repeats 20; {DIR}."
        )
    config = summary.request.config
    return (
        f"Measure your own case: other networks than {config.model}, other batch sizes or other machines may change"
        " the ranking."
    )


# --- In a table ---


def decision(table: Table) -> Decision:
    """The table to decide by: numbers, each compared with the best one of its column."""
    rows = [row for row in table.rows if row.num_runs]
    kinds = [
        Kind("images/s", "training images per second, the median over rounds", _speed, rate, most=True),
        Kind("time to target, s", "seconds of training and evaluation to --target-accuracy", _target, seconds),
        Kind("start-up, s", "from the command to the end of the first step", _startup, seconds),
        Kind("memory, MiB", "the peak of all its processes", _memory, _mebibytes),
        Kind("GPU memory, MiB", "the peak on all GPUs", _gpu_memory, _mebibytes),
        Kind("joules/image", "energy of the machine for each training image", _joules, "{:.2g}".format),
        Kind("lines of code", "of train.py, and of tuning.py where it is tuned", _code_lines, "{:.0f}".format),
    ]
    kinds = [kind for kind in kinds if any(kind.value(row) is not None for row in rows)]
    speeds = [row.speed.images_per_second for row in rows if row.speed.images_per_second]
    lines = []
    for row in rows:
        cells = [kind.cell(row, rows) for kind in kinds]
        share = row.speed.images_per_second / max(speeds) if row.speed.images_per_second else None
        cells.insert(1, Cell(text(share, "{:.0%}"), share, share))
        accuracy = row.accuracy.test_accuracy
        cells.insert(0, Cell(f"{text(accuracy, '{:.2%}')} {plus_minus(row)}".strip(), accuracy, None))
        cells.append(Cell(same_training(row) or "first row", None, None))
        lines.append((row.title, cells, row.status == "ok"))
    headings = [(kind.heading, kind.about) for kind in kinds]
    headings.insert(1, ("of the fastest", "its images/s as a share of the fastest row's"))
    headings.insert(0, ("test accuracy", "mean over seeds, with half of its 95 % interval"))
    headings.append(("same training", "as the first row's, proved by the first steps in 64 bits"))
    return Decision(headings, lines)


@dataclass(frozen=True)
class Kind:
    """A column. `most`: whether the highest value is the best one, and not the lowest."""

    heading: str
    about: str
    value: Number
    shown: Callable[[float], str]
    most: bool = False

    def cell(self, row: Row, rows: Sequence[Row]) -> Cell:
        value, known = self.value(row), [one for other in rows if (one := self.value(other)) is not None]
        if value is None:
            return Cell("", None, None)
        best = max(known) if self.most else min(known)
        share = (value / best if self.most else best / value) if value and best else None
        return Cell(self.shown(value), value, share if len(known) > 1 else None)


def _speed(row: Row) -> float | None:
    return row.speed.images_per_second


def _target(row: Row) -> float | None:
    return row.target.target_seconds


def _startup(row: Row) -> float | None:
    return row.times.startup_seconds


def _memory(row: Row) -> float | None:
    return row.resources.peak_memory_bytes


def _mebibytes(value: float) -> str:
    return mebibytes(int(value))


def _gpu_memory(row: Row) -> float | None:
    return row.resources.device_peak_memory_bytes


def _joules(row: Row) -> float | None:
    return row.resources.joules_per_image


def _code_lines(row: Row) -> float | None:
    return lines_of_training(row.implementation, row.mode)
