"""The tables of text, for the terminal, Markdown and the page: which columns they have, and what these mean."""

from collections.abc import Iterable, Sequence

import pandas as pd

from common.spec.options import ABOUT_MODES, Mode
from comparison.lockstep import FIRST_STEPS
from comparison.measure.columns import columns_of
from comparison.measure.row import DETAILED_TABLES, ROW_TABLES, SWEEP_TABLES, Row
from comparison.measure.sweep import SweepStudy
from comparison.numbers import RATIO, SHARE, span, text

# Heading of a column, in one line -> what it holds; the others say it themselves.
LEGEND = {
    "images/s": "training images per second in usual turns, the median of the runs",
    "images/s spread": "the middle half of the runs or, with fewer than four, lowest to highest",
    "ratio": "images/s divided by the first row's, from pairs of turns close in time",
    "same training": "whether the first steps in 64-bit precision prove that a row trains as the first row does",
    "largest difference in 64 bits": "between losses of the same step in the proofs",
    f"rounding 1-{FIRST_STEPS}": (
        f"the same in the runs themselves, over steps 1 to {FIRST_STEPS}, relative to the loss, absolute where the loss"
        " is below 1"
    ),
    "rounding all": "the same over all steps",
    "start-up s": "from the command to the end of the first step",
    "wall s": "of the run with the median duration; all phases add up to it",
    "CPU use": "share of the cores that the run may use",
    "memory MiB": "peak of all processes of the run together",
    "speed-up": "images/s divided by those with the fewest devices, from pairs of the same round",
    "efficiency": "the speed-up as a share of the ideal (twice the devices, twice the speed)",
}


def legend(tables: Iterable[pd.DataFrame], modes: Sequence[Mode] = ()) -> str:
    """What the columns of these tables hold, and what the modes of their rows are."""
    there = {in_one_line(heading) for cells in tables for heading in cells.columns}
    about = {heading: words for heading, words in LEGEND.items() if heading in there}
    about |= {mode: words for mode, words in ABOUT_MODES.items() if mode in modes}
    return " ".join(f"{name}: {words}." for name, words in about.items())


def in_one_line(heading: str) -> str:
    """A heading in one line; a word that was hyphenated at the end of the first line is joined again."""
    return heading.replace("\n", " ").replace("- ", "").strip()


def _text_table(table: str, rows: Sequence[Row], names: Sequence[str], **more: list[str]) -> pd.DataFrame:
    """Text: a line for each row, with its name as the index. Columns without any text are left out."""
    cells = {column.heading: [column.text(row) for row in rows] for column in columns_of(Row, table)} | more
    return pd.DataFrame({heading: texts for heading, texts in cells.items() if any(texts)}, [*names])


def row_tables(rows: Sequence[Row], details: bool = True) -> list[pd.DataFrame]:
    """The numbers of `rows` in several tables, the main one first; tables without any text are left out."""
    names = [row.label for row in rows]
    tables = [_text_table(name, rows, names) for name in ROW_TABLES if details or name not in DETAILED_TABLES]
    return [table for table in tables if not table.empty]


def study_tables(study: SweepStudy) -> list[pd.DataFrame]:
    """The tables of a sweep: speed and scaling, then accuracy and target, then what `--check-learning` has found."""
    rows, names = [row.row for row in study.rows], [f"{row.x} {row.series}" for row in study.rows]
    scaling = {
        "\nspeed-up": [text(row.ratio and row.ratio.estimate, RATIO) for row in study.rows],
        # With a space: the table has the interval of the ratio, too.
        "95 %\ninterval ": [span(row.ratio.low, row.ratio.high) if row.ratio else "" for row in study.rows],
        "\nefficiency": [text(row.efficiency, SHARE) for row in study.rows],
    }
    speeds, *others = SWEEP_TABLES
    tables = [_text_table(speeds, rows, names, **scaling), *(_text_table(name, rows, names) for name in others)]
    return [table for table in tables if not table.empty]
