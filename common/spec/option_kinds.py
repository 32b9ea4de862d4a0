"""Options with their kind: the definition of an option states what the option determines."""

from typing import Any, Literal

from pydantic import BaseModel, Field

# What an option determines. data: the examples; place: where files are; network: the network; training: how it is
# trained and evaluated; machine: the devices; setting: what the modes choose if it is not given; output: what is
# written. Place and output do not affect what is trained.
Kind = Literal["data", "place", "network", "training", "machine", "setting", "output"]


def option(kind: str, default: Any, **details: Any) -> Any:
    """A field of a configuration; `details` are passed to pydantic's `Field`."""
    return Field(default, json_schema_extra={"kind": kind}, **details)


def fields_of_kind(schema: type[BaseModel], *kinds: str) -> list[str]:
    """Names of the options of these kinds in `schema`, in their order."""
    extras = {name: field.json_schema_extra for name, field in schema.model_fields.items()}
    return [name for name, extra in extras.items() if isinstance(extra, dict) and extra["kind"] in kinds]
