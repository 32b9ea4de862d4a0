"""Writes the result files of a comparison, except the report, and logs them to the tools that `--logger` names."""

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, create_model

from common.platform.files import write_text
from common.record.results import RunResult
from comparison.measure.columns import columns_of
from comparison.measure.comparison import Comparison
from comparison.measure.row import Row
from comparison.run.program import Record
from comparison.show.sentences import conclusions, remarks, study_conclusions, what_was_compared
from comparison.show.tables import ABOUT_DETAILS, about_main, in_one_line, row_tables, study_tables

FILES = ("report.html", "results.md", "results.json", "results.csv", "runs.csv")  # what tools get as artifacts


# --- Files ---


def write_tables(comparison: Comparison) -> None:
    """`results.csv`, `runs.csv`, `results.json` with its schema, `results.md`."""
    folder = comparison.folder
    write_text(folder / "results.csv", comparison.rows.to_csv(index=False, lineterminator="\n"))
    write_text(folder / "runs.csv", comparison.runs.to_csv(index=False, lineterminator="\n"))
    write_text(folder / "results.json", _results(comparison).model_dump_json(indent=2, by_alias=True) + "\n")
    write_text(folder / "results.schema.json", _schema())
    write_text(folder / "results.md", to_markdown(comparison))


# --- The schema of results.json ---

# A row, which has the columns of `results.csv`.
_fields: dict[str, Any] = {column.name: (column.type, Field(description=column.about)) for column in columns_of(Row)}
StoredRow: Any = create_model("Row", __config__=ConfigDict(frozen=True, extra="forbid"), **_fields)


class RunSample(BaseModel):
    """A single run: its record and its own result, which is null if the run failed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    table: int = Field(ge=0)
    run_dir: str
    record: Record
    result: RunResult | None


class Results(BaseModel):
    """`results.json`. `results.schema.json` beside it is its JSON schema.

    Attributes:
      command: the command that made the comparison; the last one if it was resumed.
      rows: with the columns of `results.csv`.
      runs: all runs, in the order in which they were made.
      warnings: lines on what might mislead a reader of the rows.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    schema_file: Literal["results.schema.json"] = Field("results.schema.json", alias="$schema")
    schema_version: Literal[5]
    created: str
    command: str
    target_accuracy: float | None
    warnings: list[str]
    rows: list[StoredRow]
    runs: list[RunSample]


def _results(comparison: Comparison) -> Results:
    request = comparison.request
    return Results(
        schema_version=5,
        created=request.created,
        command=request.commands[-1],
        target_accuracy=request.options.target_accuracy,
        warnings=comparison.warnings,
        rows=[
            StoredRow(**{column.name: getattr(row, column.name) for column in columns_of(Row)})
            for row in comparison.all_rows
        ],
        runs=[
            RunSample(table=table, run_dir=run.shown_dir(comparison.folder), record=run.record, result=run.result)
            for table, run in zip(comparison.runs["table"], comparison.lines["run"], strict=True)
        ],
    )


@cache
def _schema() -> str:
    """The JSON schema of `results.json`."""
    return json.dumps(Results.model_json_schema(mode="serialization"), indent=2) + "\n"


# --- Markdown: the tables as on the terminal ---

# What would begin code, HTML, emphasis, a cell or a link (CommonMark 0.31, chapter 6; GitHub's tables).
MARKDOWN = re.compile(r"[\\`<&*|]|\](?=[(\[:])")


def to_markdown(comparison: Comparison) -> str:
    lines = [*_fenced(comparison.request.commands[-1:]), ""]
    if study := comparison.study:
        for cells in study_tables(study):
            lines += [*markdown_grid(cells), ""]
        lines += [*map(_line, study_conclusions(study)), ""]
    for table in comparison.tables:
        lines += map(_line, what_was_compared(table))
        for cells in row_tables(table.rows):
            lines += ["", *markdown_grid(cells)]
        lines += ["", *map(_line, conclusions(table)), ""]
    lines += [f"{about_main(comparison.request.options.modes)} {ABOUT_DETAILS}", ""]
    if notes := remarks(comparison):
        lines += [*_fenced(notes), ""]
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Markdown that shows the text as it is."""
    return MARKDOWN.sub(r"\\\g<0>", text)


def _line(text: str) -> str:
    """Markdown of a line, which ends at its end."""
    return f"{_plain(text)}  "


def _fenced(lines: Sequence[str]) -> list[str]:
    """A block of code, between fences that are longer than any row of backticks in it."""
    longest = max((len(ticks) for line in lines for ticks in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence, *lines, fence]


def markdown_grid(cells: pd.DataFrame) -> list[str]:
    lines = [["", *map(in_one_line, cells.columns.to_list())]]
    lines += [[line[0], *(cell or "-" for cell in line[1:])] for line in cells.itertuples()]
    head, *body = (f"| {' | '.join(map(_plain, line))} |" for line in lines)
    return [head, f"| --- |{' ---: |' * len(cells.columns)}", *body]
