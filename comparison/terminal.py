"""The tables on a terminal, within 80 columns."""

from collections.abc import Sequence

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table as TextTable

from comparison.columns import LEGEND, row_tables, study_tables
from comparison.gains import what_tuning_gives
from comparison.remarks import remarks, what_was_compared
from comparison.row import Row
from comparison.summary import Summary
from comparison.sweep import make_study


def print_tables(console: Console, summary: Summary) -> None:
    """What was compared, the tables and the remarks; with a sweep, its table instead of one for each variant."""
    study = make_study(summary)
    if study:
        first = next(table for table in summary.tables if table.first_result)
        for line in [*what_was_compared(first), f"swept: {study.option}"]:
            console.print(line)
        for cells in study_tables(study):
            console.print()
            console.print(_grid(cells, [one.row for one in study.rows]))
        console.print()
        console.print("the tables of each variant are in report.html and results.md", style="dim")
    else:
        for table in summary.tables:
            console.print()
            for line in what_was_compared(table):
                console.print(line)
            for cells in row_tables(table.rows):
                console.print()
                console.print(_grid(cells, table.rows))
            console.print()
            for line in what_tuning_gives(table):
                console.print(line)
        console.print(LEGEND, style="dim")
    for line in remarks(summary):
        console.print(line, soft_wrap=True, style="yellow" if line.startswith("warning: ") else None)


def _grid(cells: pd.DataFrame, rows: Sequence[Row]) -> TextTable:
    grid = TextTable(box=box.SIMPLE_HEAD, padding=(0, 0), pad_edge=False, show_edge=False)
    grid.add_column("\n", min_width=max(len(name.partition(":")[0]) for name in cells.index) + 1)
    for heading in cells.columns.to_list():
        # Only words may be wrapped: a number in two lines would be two numbers.
        words = heading.endswith("verdict")
        grid.add_column(
            heading,
            justify="left" if words else "right",
            no_wrap=not words,
            min_width=13 if words and cells[heading].str.contains("difference").any() else None,
        )
    for line, row in zip(cells.itertuples(), rows, strict=True):
        grid.add_row(line[0], *(cell or "-" for cell in line[1:]), style=None if row.status == "ok" else "red")
    return grid
