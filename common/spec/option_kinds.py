"""Options: what each decides stands at the option itself."""

from typing import Any, Literal

from pydantic import BaseModel, Field

# What an option decides: the examples; where files are; the network; how it is trained and evaluated; on what; what the
# modes decide where it is left open; what is written. Places and output are no part of what is trained.
Kind = Literal["data", "place", "network", "training", "machine", "setting", "output"]


def option(kind: str, default: Any, **details: Any) -> Any:
    """A field of a configuration; `details` are those of pydantic's `Field`."""
    return Field(default, json_schema_extra={"kind": kind}, **details)


def fields_of_kind(schema: type[BaseModel], *kinds: str) -> list[str]:
    """Names of its options of these kinds, in their order."""
    extras = {name: field.json_schema_extra for name, field in schema.model_fields.items()}
    return [name for name, extra in extras.items() if isinstance(extra, dict) and extra["kind"] in kinds]
