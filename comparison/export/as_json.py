"""`results.json` and its JSON schema."""

import json
from functools import cache

from comparison.summary import Results, Summary


@cache
def schema() -> str:
    """Of `results.json`."""
    return json.dumps(Results.model_json_schema(mode="serialization"), indent=2) + "\n"


def to_json(summary: Summary) -> str:
    """All rows and runs, see `comparison.summary.Results`."""
    return summary.results().model_dump_json(indent=2, by_alias=True) + "\n"
