"""Prints on a terminal, within 80 columns: the main table, warnings, and the conclusions in words."""

from collections.abc import Iterator, Sequence

import pandas as pd
from rich import box
from rich.console import Console, Group
from rich.table import Table as TextTable

from comparison.measure.comparison import Comparison
from comparison.measure.row import Row
from comparison.show.sentences import conclusions, remarks, study_conclusions, what_was_compared, what_was_swept
from comparison.show.tables import legend, row_tables, study_tables


def print_tables(console: Console, comparison: Comparison) -> None:
    """Prints what was compared, the main tables and the remarks; of a sweep its own tables."""
    if study := comparison.study:
        _print_lines(console, what_was_swept(comparison))
        for cells in study_tables(study):
            _print_parts(console, cells, [row.row for row in study.rows], study.option)
        console.print("\nthe tables of each variant are in report.html and results.md", style="dim")
    else:
        shown = []
        for table in comparison.tables:
            _print_lines(console, what_was_compared(table))
            for cells in row_tables(table.rows, details=False) if table.finished else ():
                _print_parts(console, cells, table.rows, "framework")
                shown.append(cells)
        if shown:
            console.print(f"\n{legend(shown, comparison.request.options.modes)}", style="dim")
            console.print("The report and results.md have more numbers.", style="dim")
    if notes := remarks(comparison):
        console.print()
        for line in notes:
            style = "yellow" if line.startswith("warning: ") else None
            console.print(line, style=style, soft_wrap=not console.is_terminal)


def print_conclusions(console: Console, comparison: Comparison) -> None:
    """Prints the conclusions; nothing if there is nothing to compare."""
    of_tables = [line for table in comparison.tables for line in conclusions(table)] if not comparison.study else []
    for line in study_conclusions(comparison.study) if comparison.study else of_tables:
        console.print(line, soft_wrap=not console.is_terminal)


def _print_lines(console: Console, lines: Sequence[str]) -> None:
    console.print()
    for line in lines:
        console.print(line)


def tables_so_far(console: Console, comparison: Comparison) -> Group:
    """The main tables while further rounds are made."""
    parts = (
        part
        for table in comparison.tables
        for cells in (row_tables(table.rows, details=False) if table.finished else ())
        for part in _parts(console, cells, table.rows, "framework")
    )
    return Group("\nresults so far; more rounds narrow the intervals, and cover more processes:\n", *parts, "")


def _print_parts(console: Console, cells: pd.DataFrame, rows: Sequence[Row], what: str) -> None:
    for part in _parts(console, cells, rows, what):
        console.print()
        console.print(part)


def _parts(console: Console, cells: pd.DataFrame, rows: Sequence[Row], what: str) -> Iterator[TextTable]:
    """A table, in parts of as many columns as fit beside each other."""
    unbounded = console.options.update(width=10**4)
    while (count := len(cells.columns)) > 0:
        grid = _grid(cells.iloc[:, :count], rows, what)
        while count > 1 and console.measure(grid, options=unbounded).maximum > console.width:
            count -= 1
            grid = _grid(cells.iloc[:, :count], rows, what)
        yield grid
        cells = cells.iloc[:, count:]


def _grid(cells: pd.DataFrame, rows: Sequence[Row], what: str) -> TextTable:
    """`rows`: their statuses decide the colours of the lines."""
    grid = TextTable(box=box.SIMPLE_HEAD, padding=(0, 0), pad_edge=False, show_edge=False)
    grid.add_column(f"\n{what}", min_width=max(len(name.partition(":")[0]) for name in cells.index) + 1)
    for heading in cells.columns.to_list():
        grid.add_column(heading, justify="right", no_wrap=True)
    for number, line in enumerate(cells.itertuples()):
        style = None if rows[number].status == "ok" else "red"
        grid.add_row(line[0], *(cell or "-" for cell in line[1:]), style=style)
    return grid
