"""Writes the result files of a comparison, except the report."""

from common.platform.files import write_text
from comparison.export.as_csv import runs_to_csv, to_csv
from comparison.export.as_json import schema, to_json
from comparison.export.as_markdown import to_markdown
from comparison.summary import Summary


def write_tables(summary: Summary) -> None:
    """`results.csv`, `runs.csv`, `results.json` with its schema, `results.md`."""
    folder = summary.folder
    write_text(folder / "results.csv", to_csv(summary))
    write_text(folder / "runs.csv", runs_to_csv(summary))
    write_text(folder / "results.json", to_json(summary))
    write_text(folder / "results.schema.json", schema())
    write_text(folder / "results.md", to_markdown(summary))
