"""`results.json` and its JSON schema."""

import json
from functools import cache

from comparison.summary import Results, Summary


@cache
def schema() -> str:
    """The JSON schema of `results.json`."""
    return json.dumps(Results.model_json_schema(mode="serialization"), indent=2) + "\n"


def to_json(summary: Summary) -> str:
    """`results.json`: all rows and runs, see `comparison.summary.Results`."""
    return summary.results().model_dump_json(indent=2, by_alias=True) + "\n"
