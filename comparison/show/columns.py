"""The columns of the tables for people: each shows a value of a row as text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import pandas as pd

from comparison.intervals import Ratio
from comparison.lockstep import FIRST_STEPS
from comparison.measure.baseline import Change
from comparison.measure.numbers import difference, least_most, mebibytes, points, rate, seconds, short_rate, span, text
from comparison.measure.row import Row
from comparison.measure.sweep import Study, StudyRow

Kind = TypeVar("Kind")


def plus_minus(row: Row) -> str:
    if row.accuracy.test_accuracy_low is None or row.accuracy.test_accuracy_high is None:
        return ""
    return f"±{50 * (row.accuracy.test_accuracy_high - row.accuracy.test_accuracy_low):.2f}"


def row_name(row: Row) -> str:
    return row.title if row.status in ("ok", "some failed") else f"{row.title}: {row.status}"


# --- Columns: a heading of two lines each, so that the tables fit 80 columns ---


@dataclass(frozen=True)
class Column(Generic[Kind]):
    """A column with a heading of two lines. A table leaves it out if all its cells are empty."""

    first: str
    second: str
    cell: Callable[[Kind], str]

    @property
    def heading(self) -> str:
        return f"{self.first}\n{self.second}"


def in_one_line(heading: str) -> str:
    """A heading in one line; a word that was hyphenated at the end of the first line is joined again."""
    return heading.replace("\n", " ").replace("- ", "").strip()


MAIN = [
    Column[Row]("test", "accuracy", lambda row: text(row.accuracy.test_accuracy, "{:.2%}")),
    Column[Row]("95 %", "points", plus_minus),
    Column[Row]("", "images/s", lambda row: rate(row.speed.images_per_second)),
    Column[Row]("images/s", "spread", lambda row: spread(row)),
    Column[Row]("", "ratio", lambda row: text(row.speed.ratio, "{:.2f}")),
    Column[Row]("95 %", "interval", lambda row: span(row.speed.ratio_low, row.speed.ratio_high, "{:.2f}".format)),
    Column[Row]("ratio in", "few rounds", lambda row: few_rounds(row)),
    Column[Row]("same", "training", lambda row: same_training(row)),
]
DETAILS = [
    Column[Row]("test", "loss", lambda row: text(row.accuracy.test_loss, "{:.4f}")),
    Column[Row]("largest difference", "in 64 bits", lambda row: difference(row.lockstep.proof_difference)),
    Column[Row]("rounding", f"1-{FIRST_STEPS}", lambda row: difference(row.lockstep.loss_difference_first_steps)),
    Column[Row]("rounding", "all", lambda row: difference(row.lockstep.loss_difference_all_steps)),
    Column[Row]("", "verdict", lambda row: row.speed.verdict or ""),
]
TIMES = [
    Column[Row]("imports", "s", lambda row: seconds(row.times.imports_seconds)),
    Column[Row]("data", "s", lambda row: seconds(row.times.data_seconds)),
    Column[Row]("build", "s", lambda row: seconds(row.times.build_seconds)),
    Column[Row]("training", "s", lambda row: seconds(row.times.training_seconds)),
    Column[Row]("evaluation", "s", lambda row: seconds(row.times.evaluation_seconds)),
    Column[Row]("rest", "s", lambda row: seconds(row.times.rest_seconds)),
    Column[Row]("wall", "s", lambda row: seconds(row.times.wall_seconds)),
    Column[Row]("CPU", "use", lambda row: text(row.resources.cpu_utilisation, "{:.0%}")),
    Column[Row]("memory", "MiB", lambda row: mebibytes(row.resources.peak_memory_bytes)),
]
DEVICE = [
    Column[Row]("GPU", "use", lambda row: text(row.resources.gpu_utilisation, "{:.0%}")),
    Column[Row]("GPU memory", "MiB", lambda row: mebibytes(row.resources.device_peak_memory_bytes)),
    Column[Row]("joules", "per image", lambda row: text(row.resources.joules_per_image, "{:.2g}")),
]
TARGET = [
    Column[Row]("target", "reached", lambda row: reached(row)),
    Column[Row]("target", "epochs", lambda row: text(row.target.target_epochs, "{:.1f}")),
    Column[Row]("target", "steps", lambda row: text(row.target.target_steps, "{:,.0f}")),
    Column[Row]("target", "s", lambda row: seconds(row.target.target_seconds)),
    Column[Row](
        "target s,",
        "middle half",
        lambda row: span(row.target.target_seconds_q1, row.target.target_seconds_q3, seconds) * (row.num_runs > 1),
    ),
    Column[Row](
        "start-up", "s", lambda row: seconds(row.times.startup_seconds) * (row.target.target_reached is not None)
    ),
]
LEARNING = [
    Column[Row]("learned", "by heart", lambda row: by_heart(row)),
    Column[Row]("training", "loss", lambda row: text(row.learning.train_loss, "{:.4f}")),
    Column[Row]("test", "loss", lambda row: text(row.accuracy.test_loss, "{:.4f}") if row.learning.learning else ""),
    Column[Row]("training", "accuracy", lambda row: text(row.learning.train_accuracy, "{:.2%}")),
    Column[Row]("", "learning", lambda row: row.learning.learning or ""),
]
ABOUT_MAIN = (
    "images/s: training images per second in usual turns, the median of the runs; spread: the middle"
    " half of the runs or, with fewer than four, lowest to highest. ratio: images/s divided by the first row's, from"
    " turns of training that followed each other. same training: whether the first steps in 64 bits prove it equal"
    " to the first row's."
)
ABOUT_DETAILS = (
    "largest difference in 64 bits: between losses of the same step in the proofs. rounding: the same in the runs"
    f" themselves, over steps 1 to {FIRST_STEPS} and over all steps; relative to the loss, absolute where the loss"
    " is below 1. seconds: of the run with the median duration; all phases add up to wall. CPU use: share of the"
    " cores that the run may use. memory: peak of all processes of the run together."
)
ABOUT_STUDY = (
    "speed-up: images/s over those with the fewest devices, from pairs of the same round. efficiency: the speed-up"
    " as a share of the ideal (twice the devices, twice the speed)."
)


def spread(row: Row) -> str:
    """The range of images/s: the middle half or, with few runs, lowest to highest; empty for a single run."""
    low, high = row.speed.spread or (None, None)
    return span(low, high, short_rate) if low != high else ""


def few_rounds(row: Row) -> str:
    """The lowest and the highest ratio of a single round, if there are too few rounds for a ratio; else empty."""
    speed = row.speed
    if speed.ratio is not None or speed.ratio_min is None or speed.ratio_max is None:
        return ""
    return least_most(speed.ratio_min, speed.ratio_max)


def same_training(row: Row) -> str:
    """Whether a row is the same training as the first row: `yes`, `no` or `not proved`; else empty."""
    if row.lockstep.same_training is None:
        return "not proved" if row.status in ("not proved", "different training") else ""
    return "yes" if row.lockstep.same_training else "no"


def by_heart(row: Row) -> str:
    """`64 in 25 steps`: of training images that it was to learn."""
    count, steps = row.learning.small_set_count, row.learning.small_set_steps
    if count is None:
        return ""
    return f"{count} in {steps} steps" if steps is not None else f"not {count}"


def reached(row: Row) -> str:
    if row.target.target_reached is None:
        return ""
    if row.num_runs == 1:
        return "yes" if row.target.target_reached else "no"
    return f"{row.target.target_reached} of {row.num_runs}"


def row_tables(rows: Sequence[Row], details: bool = True) -> list[pd.DataFrame]:
    """The numbers of `rows` in several tables, the main one first; see `_cells`."""
    return _cells([MAIN, TARGET, LEARNING, *([DETAILS, TIMES, DEVICE] if details else [])], rows, row_name)


def baseline_table(changes: Sequence[Change]) -> pd.DataFrame:
    """The changes since an earlier comparison as a table; empty if no row can be compared."""
    columns = [
        Column[Change]("accuracy", "points", lambda one: "" if not one.accuracy else points(*one.accuracy)),
        Column[Change]("images/s", "then", lambda one: rate(one.speed[0] if one.speed else None)),
        Column[Change]("images/s", "now", lambda one: rate(one.speed[1] if one.speed else None)),
        Column[Change]("", "ratio", lambda one: text(one.ratio.estimate if one.ratio else None, "{:.2f}")),
        Column[Change]("95 %", "interval", lambda one: "" if not one.ratio else _interval(one.ratio)),
        Column[Change]("", "verdict", lambda one: (one.ratio.verdict if one.ratio else None) or "none"),
        Column[Change]("same", "training", lambda one: {True: "yes", False: "no", None: ""}[one.same_training]),
    ]
    known = [change for change in changes if change.accuracy]
    return next(iter(_cells([columns], known, lambda one: one.title)), pd.DataFrame()) if known else pd.DataFrame()


def _interval(ratio: Ratio) -> str:
    return span(ratio.low, ratio.high, "{:.2f}".format)


def study_tables(study: Study) -> list[pd.DataFrame]:
    """The tables of a sweep: speed and scaling, then accuracy and target, then what `--check-learning` has found."""
    of_row = {(column.first, column.second): column for column in LEARNING + MAIN + DETAILS + TARGET}

    def lifted(first: str, second: str) -> Column[StudyRow]:
        column = of_row[first, second]
        return Column(first, second, lambda one: column.cell(one.row))

    speed = [
        lifted("", "images/s"),
        lifted("images/s", "spread"),
        lifted("", "ratio"),
        lifted("95 %", "interval"),
        lifted("ratio in", "few rounds"),
        Column[StudyRow]("", "speed-up", lambda one: speed_up(one)),
        Column[StudyRow]("95 %", "interval ", lambda one: span(*_ends(one), "{:.2f}".format)),
        Column[StudyRow]("", "efficiency", lambda one: "-".join(dict.fromkeys(map("{:.0%}".format, one.efficiencies)))),
    ]
    learning = [
        Column[StudyRow]("learning", "rate", lambda one: text(one.row.learning_rate, "{:g}")),
        lifted("test", "accuracy"),
        lifted("95 %", "points"),
        lifted("test", "loss"),
        lifted("target", "reached"),
        lifted("target", "epochs"),
        lifted("target", "steps"),
        lifted("target", "s"),
        lifted("same", "training"),
    ]
    learned = [
        lifted("learned", "by heart"),
        lifted("training", "loss"),
        lifted("training", "accuracy"),
        lifted("", "learning"),
    ]
    return _cells([speed, learning, learned], study.rows, lambda row: f"{row.x} {row.series}")


def speed_up(one: StudyRow) -> str:
    if one.speed_up is None or one.speed_up.estimate is not None:
        return text(one.speed_up.estimate if one.speed_up else None, "{:.2f}")
    return least_most(one.speed_up.least, one.speed_up.most)


def _ends(one: StudyRow) -> tuple[float | None, float | None]:
    return (one.speed_up.low, one.speed_up.high) if one.speed_up else (None, None)


def _cells(
    groups: Sequence[Sequence[Column[Kind]]], rows: Sequence[Kind], name: Callable[[Kind], str]
) -> list[pd.DataFrame]:
    """A DataFrame of text for each group of columns. The index has the rows' names; the columns are the headings."""
    names = [name(row) for row in rows]
    tables = []
    for group in groups:
        headings = [column.heading for column in group]
        table = pd.DataFrame([[column.cell(row) for column in group] for row in rows], names, headings)
        tables.append(table.loc[:, (table != "").any()])
    return [table for table in tables if not table.empty]
