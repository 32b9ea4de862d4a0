"""Everything that a comparison's folder holds beside its runs."""

import json
from functools import cache

from common.platform.files import write_text
from comparison.columns import runs_to_csv, to_csv, to_markdown
from comparison.summary import Results, Summary


@cache
def _schema() -> str:
    return json.dumps(Results.model_json_schema(mode="serialization"), indent=2) + "\n"


def write_tables(summary: Summary) -> None:
    """`results.csv`, `runs.csv`, `results.json` with its schema, `results.md`."""
    folder = summary.folder
    write_text(folder / "results.csv", to_csv(summary))
    write_text(folder / "runs.csv", runs_to_csv(summary))
    write_text(folder / "results.json", summary.results().model_dump_json(indent=2, by_alias=True) + "\n")
    write_text(folder / "results.schema.json", _schema())
    write_text(folder / "results.md", to_markdown(summary))
