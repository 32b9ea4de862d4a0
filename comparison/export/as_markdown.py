"""Markdown: the tables as on the terminal."""

import pandas as pd

from comparison.columns import ABOUT_DETAILS, ABOUT_MAIN, baseline_table, in_one_line, row_tables, study_tables
from comparison.conclusions import conclusions, study_conclusions
from comparison.remarks import remarks, what_was_compared
from comparison.summary import Summary
from comparison.sweep import make_study


def to_markdown(summary: Summary) -> str:
    lines = [f"`{summary.request.commands[-1]}`", ""]
    study = make_study(summary)
    if study:
        for cells in study_tables(study):
            lines += [*markdown_grid(cells), ""]
        lines += [*(f"{line}  " for line in study_conclusions(study)), ""]
    for table in summary.tables:
        lines += [f"{line}  " for line in what_was_compared(table)]
        for cells in row_tables(table.rows):
            lines += ["", *markdown_grid(cells)]
        lines += ["", *(f"{line}  " for line in conclusions(table)), ""]
    beside = baseline_table(summary.changes)
    if not beside.empty:
        lines += [f"Beside {summary.request.options.baseline}:", "", *markdown_grid(beside), ""]
    lines += [f"{ABOUT_MAIN} {ABOUT_DETAILS}", ""]
    if found := remarks(summary):
        lines += ["```", *found, "```", ""]
    return "\n".join(lines)


def markdown_grid(cells: pd.DataFrame) -> list[str]:
    lines = [["", *map(in_one_line, cells.columns.to_list())], ["---", *["---:"] * len(cells.columns)]]
    lines += [[line[0], *(cell or "-" for cell in line[1:])] for line in cells.itertuples()]
    return [f"| {' | '.join(line)} |" for line in lines]
