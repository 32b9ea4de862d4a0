"""The tables of text, for the terminal, Markdown and the page: which columns they have, and what these mean."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from comparison.lockstep import FIRST_STEPS
from comparison.measure.baseline import Change
from comparison.measure.columns import Column, columns_of, text_table
from comparison.measure.sweep import Study, StudyRow
from comparison.measure.table import DETAILED, GROUPS, Row

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


def in_one_line(heading: str) -> str:
    """A heading in one line; a word that was hyphenated at the end of the first line is joined again."""
    return heading.replace("\n", " ").replace("- ", "").strip()


def row_tables(rows: Sequence[Row], details: bool = True) -> list[pd.DataFrame]:
    """The numbers of `rows` in several tables, the main one first; tables without any text are left out."""
    groups = [columns_of(Row, group) for group in GROUPS if details or group not in DETAILED]
    tables = [text_table(columns, rows, [row.label for row in rows]) for columns in groups]
    return [table for table in tables if not table.empty]


def baseline_table(changes: Sequence[Change]) -> pd.DataFrame:
    """The changes since an earlier comparison as a table; empty if no row can be compared."""
    known = [change for change in changes if change.is_comparable]
    return text_table(columns_of(Change, "beside"), known, [change.title for change in known])


def study_tables(study: Study) -> list[pd.DataFrame]:
    """The tables of a sweep: speed and scaling, then accuracy and target, then what `--check-learning` has found."""
    rows, names = [one.row for one in study.rows], [f"{one.x} {one.series}" for one in study.rows]
    speed: list[Column[Any]] = [Row.images_per_second, Row.shown_spread, Row.ratio, Row.ratio_interval, Row.few_rounds]
    target: list[Column[Any]] = [Row.reached, Row.target_epochs, Row.target_steps, Row.target_seconds]
    accuracy: list[Column[Any]] = [
        Row.learning_rate,
        Row.test_accuracy,
        Row.plus_minus,
        Row.test_loss,
        *target,
        Row.same_as_first,
    ]
    learned: list[Column[Any]] = [Row.by_heart, Row.train_loss, Row.train_accuracy, Row.learning]
    scaling = text_table(columns_of(StudyRow, "scaling"), study.rows, names)
    tables = [text_table(columns, rows, names) for columns in (speed, accuracy, learned)]
    tables[0] = pd.concat([tables[0], scaling], axis=1)
    return [table for table in tables if not table.empty]
