"""CSV: a file with a line for each row of the tables, and a file with a line for each run."""

import pandas as pd

from comparison.frames import rows_frame, runs_frame
from comparison.summary import Summary


def to_csv(summary: Summary) -> str:
    """`results.csv`: the rows, with lists and variants as text."""
    return _csv(rows_frame(summary.rows))


def runs_to_csv(summary: Summary) -> str:
    """`runs.csv`: the runs, which are the raw samples."""
    return _csv(runs_frame(summary))


def _csv(frame: pd.DataFrame) -> str:
    return frame.to_csv(index=False, lineterminator="\n")
