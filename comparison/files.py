"""Everything that a comparison's folder holds beside its runs."""

import json

from common.results import write_text
from comparison.summary import Results, Summary
from comparison.table import runs_to_csv, to_csv, to_markdown


def write_tables(summary: Summary) -> None:
    """`results.csv`, `runs.csv`, `results.json` with its schema, `results.md`."""
    folder = summary.folder
    write_text(folder / "results.csv", to_csv(summary))
    write_text(folder / "runs.csv", runs_to_csv(summary))
    write_text(folder / "results.json", summary.results().model_dump_json(indent=2, by_alias=True) + "\n")
    schema = Results.model_json_schema(mode="serialization")
    write_text(folder / "results.schema.json", json.dumps(schema, indent=2) + "\n")
    write_text(folder / "results.md", to_markdown(summary))
