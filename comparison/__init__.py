"""The parts of compare.py, in rooms: plan, run, prove, measure, show. They import no framework.

In a notebook: `comparison.load(DIR)`.
"""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from comparison.measure.frames import epochs_frame, rows_frame, runs_frame, steps_frame, turns_frame
from comparison.measure.summary import find_runs, summarise
from comparison.plan.request import Request


@dataclass(frozen=True)
class Comparison:
    """The results of `compare.py` so far, as DataFrames. docs/columns.md says what is in each column.

    Attributes:
      rows: a line for each row of the tables, as in `results.csv`.
      runs: a line for each run, as in `runs.csv`; `run_dir` is its folder, relative to the comparison's folder.
      epochs: a line for each evaluation of each run that has succeeded; `run_dir` names the run.
      turns: a line for each turn of each run that has succeeded, see `common.record.results.TurnLine`; `run_dir` names
        the run. The runs of a round that have the same cycle trained within the same seconds.
      steps: a line for each training step of each run that has succeeded; `run_dir` names the run.
      warnings: a line each, on what might mislead a reader of the rows.
      missing: how many runs are still to be made.
    """

    rows: pd.DataFrame
    runs: pd.DataFrame
    epochs: pd.DataFrame
    turns: pd.DataFrame
    steps: pd.DataFrame
    warnings: list[str]
    missing: int


def load(folder: str | Path) -> Comparison:
    """Reads the folder of a comparison, which may still be running.

    Raises:
      UserError: the folder has no comparison, or the comparison is of another version.
    """
    folder = Path(folder)
    request = Request.read(folder, "load")
    runs, missing = find_runs(folder, request)
    summary = summarise(folder, request, runs, len(missing))
    return Comparison(
        rows=rows_frame(summary.rows),
        runs=runs_frame(summary),
        epochs=epochs_frame(summary),
        turns=turns_frame(summary),
        steps=steps_frame(summary),
        warnings=summary.warnings,
        missing=summary.missing,
    )
