"""Markdown: the tables as on the terminal."""

from collections.abc import Callable, Sequence

from comparison.columns import LEGEND, Column, Kind, column_groups, row_name, study_columns, study_name
from comparison.gains import what_tuning_gives
from comparison.remarks import remarks, what_was_compared
from comparison.summary import Summary
from comparison.sweep import make_study


def to_markdown(summary: Summary) -> str:
    lines = [f"`{summary.request.commands[-1]}`", ""]
    study = make_study(summary)
    if study:
        for group in study_columns(study):
            lines += [*_markdown_grid(group, study.rows, study_name), ""]
    for table in summary.tables:
        lines += [f"{line}  " for line in what_was_compared(table)]
        for columns in column_groups(table.rows) or [[]]:
            lines += ["", *_markdown_grid(columns, table.rows, row_name)]
        lines += ["", *(f"{line}  " for line in what_tuning_gives(table)), ""]
    lines += [LEGEND, ""]
    if found := remarks(summary):
        lines += ["```", *found, "```", ""]
    return "\n".join(lines)


def _markdown_grid(columns: Sequence[Column[Kind]], rows: Sequence[Kind], name: Callable[[Kind], str]) -> list[str]:
    head = ["", *(column.heading for column in columns)]
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * len(columns)]
    return lines + [
        "| " + " | ".join([name(row), *(column.cell(row) or "-" for column in columns)]) + " |" for row in rows
    ]
