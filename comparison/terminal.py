"""The tables on a terminal, within 80 columns."""

from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table as TextTable

from comparison.columns import LEGEND, Column, Kind, column_groups, row_name, study_columns, study_name
from comparison.gains import what_tuning_gives
from comparison.remarks import remarks, what_was_compared
from comparison.summary import Summary
from comparison.sweep import make_study


def print_tables(console: Console, summary: Summary) -> None:
    """What was compared, the tables and the remarks; with a sweep, its table instead of one for each variant."""
    study = make_study(summary)
    if study:
        first = next(table for table in summary.tables if table.first_result)
        for line in [*what_was_compared(first), f"swept: {study.option}"]:
            console.print(line)
        for group in study_columns(study):
            console.print()
            console.print(_grid(group, study.rows, study_name, lambda one: one.row.status == "ok"))
        console.print()
        console.print("the tables of each variant are in report.html and results.md", style="dim")
    else:
        for table in summary.tables:
            console.print()
            for line in what_was_compared(table):
                console.print(line)
            for columns in column_groups(table.rows) or [[]]:
                console.print()
                console.print(_grid(columns, table.rows, row_name, lambda row: row.status == "ok"))
            console.print()
            for line in what_tuning_gives(table):
                console.print(line)
        console.print(LEGEND, style="dim")
    for line in remarks(summary):
        console.print(line, soft_wrap=True, style="yellow" if line.startswith("warning: ") else None)


def _grid(
    columns: Sequence[Column[Kind]], rows: Sequence[Kind], name: Callable[[Kind], str], good: Callable[[Kind], bool]
) -> TextTable:
    grid = TextTable(box=box.SIMPLE_HEAD, padding=(0, 0), pad_edge=False, show_edge=False)
    names = [name(row) for row in rows]
    grid.add_column("\n", min_width=max(len(one.partition(":")[0]) for one in names) + 1)
    for column in columns:
        # Only words may be wrapped: a number in two lines would be two numbers.
        words = column.second == "verdict"
        grid.add_column(
            f"{column.first}\n{column.second}",
            justify="left" if words else "right",
            no_wrap=not words,
            min_width=13 if words and any("difference" in column.cell(row) for row in rows) else None,
        )
    for row, shown in zip(rows, names, strict=True):
        cells = [column.cell(row) or "-" for column in columns]
        grid.add_row(shown, *cells, style=None if good(row) else "red")
    return grid
