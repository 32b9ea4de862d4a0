"""Writes the result files of a comparison, except the report."""

import json
import re
from typing import Any

import pandas as pd

from common.platform.files import write_text
from comparison.measure.comparison import Comparison
from comparison.show.sentences import conclusions, remarks, study_conclusions, what_was_compared
from comparison.show.tables import in_one_line, legend, row_tables, study_tables


def write_tables(comparison: Comparison) -> None:
    """`results.csv`, `runs.csv`, `results.md`, and `results.json`, which has the lines of both CSV files."""
    folder, request = comparison.folder, comparison.request
    content: dict[str, Any] = {
        "created": request.created,
        "command": request.commands[-1],
        "warnings": comparison.warnings,
    }
    for name, file, frame in (("rows", "results.csv", comparison.rows), ("runs", "runs.csv", comparison.runs)):
        write_text(folder / file, frame.to_csv(index=False, lineterminator="\n"))
        content[name] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    write_text(folder / "results.json", json.dumps(content, indent=2) + "\n")
    write_text(folder / "results.md", to_markdown(comparison))


# --- Markdown: the tables as on the terminal ---

# What would begin code, HTML, emphasis, a cell or a link (CommonMark 0.31, chapter 6; GitHub's tables).
MARKDOWN_CHARACTERS = re.compile(r"[\\`<&*|]|\](?=[(\[:])")


def to_markdown(comparison: Comparison) -> str:
    lines, shown = [f"    {comparison.request.commands[-1]}", ""], []  # indented lines are a block of code
    if study := comparison.study:
        shown += study_tables(study)
        for cells in shown:
            lines += [*markdown_grid(cells), ""]
        lines += [*map(_line, study_conclusions(study)), ""]
    for table in comparison.tables:
        lines += map(_line, what_was_compared(table))
        tables = row_tables(table.rows)
        shown += tables
        for cells in tables:
            lines += ["", *markdown_grid(cells)]
        lines += ["", *map(_line, conclusions(table)), ""]
    lines += [legend(shown, comparison.request.options.modes), ""]
    if notes := remarks(comparison):
        lines += [*(f"    {line}" for line in notes), ""]
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Markdown that shows the text as it is."""
    return MARKDOWN_CHARACTERS.sub(r"\\\g<0>", text)


def _line(text: str) -> str:
    """Markdown of a line, which ends at its end."""
    return f"{_plain(text)}  "


def markdown_grid(cells: pd.DataFrame) -> list[str]:
    lines = [["", *map(in_one_line, cells.columns.to_list())]]
    lines += [[line[0], *(cell or "-" for cell in line[1:])] for line in cells.itertuples()]
    head, *body = (f"| {' | '.join(map(_plain, line))} |" for line in lines)
    return [head, f"| --- |{' ---: |' * len(cells.columns)}", *body]
