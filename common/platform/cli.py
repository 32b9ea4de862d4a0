"""Command lines: every field of a configuration is an option, with YAML files and one-line errors."""

import argparse
import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import yaml
from pydantic import BaseModel, Field, ValidationError

from common.platform.errors import UserError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


Config = TypeVar("Config", bound=BaseModel)
MAX_SHOWN = 100  # characters of a value that a message shows


class _Parser(argparse.ArgumentParser):
    """Reads options and files as text; pydantic checks types and bounds. What is not given has no attribute."""

    fields: Collection[str] = ()  # that a file may have

    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ").replace("unrecognized arguments:", "unknown option")
        raise UserError(f"{message} (see {self.prog} --help)")


class _OptionsFile(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        vars(namespace).update(read_options_file(Path(values), parser.fields))


def positional(metavar: str, description: str) -> Any:
    """A field for positional arguments: one or more words without an option name."""
    return Field(min_length=1, description=description, json_schema_extra={"positional": metavar})


def parse_options(schema: type[Config], program: str, about: str, arguments: Sequence[str] | None = None) -> Config:
    """Reads the command line (`arguments`, or sys.argv) into `schema`.

    `--config FILE.yaml` sets any of the options; options after it override them. The configuration's `model_fields_set`
    has the options that were given on the command line or in the file. A schema may have `headings`, under which
    --help shows its options, see `common.spec.options.option`.

    Raises:
      UserError: the message is one line that names the option and the value.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    headings: dict[str, tuple[str, ...]] = getattr(schema, "headings", {})
    parser = _Parser(
        prog=program,
        usage="%(prog)s [--OPTION VALUE ...]" if headings else None,
        description=about,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        add_help=False,
    )
    parser.fields = schema.model_fields
    first = parser.add_argument_group("most used") if headings else parser
    by_kind: dict[str, Any] = {}
    for title, kinds in headings.items():
        by_kind |= dict.fromkeys(kinds, parser.add_argument_group(title))
    last = parser.add_argument_group("options from a file, and help") if headings else parser
    last.add_argument("--config", action=_OptionsFile, metavar="FILE.yaml", help="read options from a YAML file")
    last.add_argument("-h", "--help", action="help", help="show this text")
    properties = schema.model_json_schema(mode="validation")
    many = {name: _array(properties["properties"][name]) for name in schema.model_fields}
    for name, field in schema.model_fields.items():
        shape = properties["properties"][name]
        if many[name] == "+" and [item.partition("=")[0] for item in arguments].count(option_name(name)) > 1:
            raise UserError(f"{option_name(name)}: given twice; list all its values after one")
        extra: Any = field.json_schema_extra or {}
        if "positional" in extra:
            parser.add_argument(name, nargs="+", metavar=extra["positional"], help=_escaped(field.description))
            continue
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        shown = "" if default in (None, [], ()) else f" (default: {as_typed(default)})"
        text = _escaped(f"{field.description}{' (needed)' if field.is_required() else shown}")
        group = first if extra.get("shown") == "first" else by_kind.get(extra.get("kind"), parser)
        group.add_argument(
            option_name(name),
            help=argparse.SUPPRESS if extra.get("shown") == "never" else text,
            metavar=("H", "W", "C") if many[name] == 3 else _allowed(shape, properties.get("$defs", {})),
            **({"nargs": "?", "const": "true"} if _switch(shape) else {"nargs": many[name]}),
        )
    values = vars(parser.parse_args(arguments))
    for name, value in values.items():
        if value == "":
            raise UserError(f"{option_name(name)}: is empty")
        if isinstance(value, str) and many[name]:  # a file may have one value without brackets
            values[name] = value = [value]
        if isinstance(value, list) and many[name] not in ("+", len(value)):
            wanted = f"{many[name]} values" if many[name] else "a single value, without brackets"
            raise UserError(f"{option_name(name)} {as_typed(value)}: should be {wanted}")
    try:
        config = schema(**values)
    except ValidationError as error:
        raise UserError(_one_line(error)) from None
    for name, path in config:
        if isinstance(path, Path):
            _check_path(path, name)
    return config


def _check_path(path: Path, field: str) -> None:
    """Raises UserError for a path that can't exist here, such as a name that is too long, or that can't be entered."""
    try:
        os.stat(f"{path}/.")  # noqa: PTH116 - a Path would lose the dot, without which a folder need not be entered
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise UserError(f"{option_name(field)} {_shortened(str(path))}: {error.strerror}") from None


def to_arguments(config: BaseModel) -> list[str]:
    """The command line that reproduces `config`; it has only the options that differ from their defaults."""
    arguments = []
    for name, value in config.model_dump(mode="json", exclude_defaults=True).items():
        arguments += [option_name(name), *(map(str, value) if isinstance(value, list) else [as_typed(value)])]
    return arguments


# --- What --help and errors say of types and bounds, from the JSON schema of the configuration ---

MANY = 10**5  # larger bounds are not shown: a user exceeds them only by mistake
LONGEST_CHOICE = 70  # characters of names in braces; longer lists do not fit a terminal and are in the description


def _escaped(text: str | None) -> str:
    """A help text in which argparse replaces nothing."""
    return (text or "").replace("%", "%%")


def _switch(shape: dict[str, Any]) -> bool:
    """Whether an option is true or false: without a value it is true."""
    return any(part.get("type") == "boolean" for part in [shape, *shape.get("anyOf", [])])


def _array(shape: dict[str, Any]) -> int | str | None:
    """How many values an option takes: a number, "+" for one or more, None for exactly one."""
    for part in [shape, *shape.get("anyOf", [])]:
        if part.get("type") == "array":
            number: int | None = part.get("maxItems")
            return number or "+"
    return None


def _allowed(shape: dict[str, Any], definitions: dict[str, Any]) -> str:
    if "anyOf" in shape:
        kinds = [_allowed(part, definitions) for part in shape["anyOf"] if part.get("type") != "null"]
        return " or ".join(kinds)
    if "enum" in shape:
        names = "{" + ",".join(map(str, shape["enum"])) + "}"
        return names if len(names) <= LONGEST_CHOICE else "NAME"
    if "const" in shape:
        return str(shape["const"])
    if shape.get("type") == "boolean":
        return "{true,false}"
    if shape.get("type") == "array":
        return _allowed(shape.get("items") or shape["prefixItems"][0], definitions)
    name = {"integer": "INT", "number": "FLOAT"}.get(shape.get("type", ""), "")
    if not name:
        return "PATH" if shape.get("format") == "path" else "TEXT"
    signs = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
    bounds = [f"{sign}{shape[key]:g}" for key, sign in signs.items() if abs(shape.get(key, MANY)) < MANY]
    return name + ",".join(bounds)


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _one_line(error: ValidationError) -> str:
    """All messages of a validation error in one line: `--batch-size -3: should be greater than 0`."""
    by_option: dict[str, list[str]] = {}
    for item in error.errors():
        message = complaint(item)
        if not item["loc"]:  # a check of several fields, whose message names them
            by_option.setdefault("", []).append(message)
            continue
        if item["type"] == "missing":
            by_option[f"{option_name(str(item['loc'][0]))}: "] = ["is needed"]
            continue
        key = f"{option_name(str(item['loc'][0]))} {_shortened(as_typed(item['input']))}: "
        by_option.setdefault(key, []).append(message)
    return "; ".join(key + " or ".join(dict.fromkeys(messages)) for key, messages in by_option.items())


# --- Files of options, for --config ---

UNSET = ("null", "~")  # the files of runs in JSON have null, too


def read_options_file(path: Path, known: Collection[str]) -> dict[str, str | list[str] | None]:
    """Field -> its value as text, or None if the file says null, of a YAML file with lines of OPTION: VALUE.

    YAML's own types are not used: `010` and `off` are what they would be on the command line.

    Args:
      known: the fields that the file may have.

    Raises:
      UserError: the file can't be read, or is not a plain mapping of these fields to values, each field once.
    """
    try:
        content = yaml.load(path.read_text("utf-8"), Loader=yaml.BaseLoader)  # BaseLoader makes no objects but text
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no text in UTF-8"
        raise UserError(f"--config {path}: {reason}") from None
    except yaml.YAMLError as error:
        raise UserError(f"--config {path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict) or not content:
        raise UserError(f"--config {path}: should hold lines of OPTION: VALUE")
    values: dict[str, str | list[str] | None] = {}
    for name, value in content.items():
        field = name.replace("-", "_")
        if field not in known:
            raise UserError(f"--config {path}: {name!r} is not an option that a file can have")
        if field in values:
            raise UserError(f"--config {path}: {name} is given twice")
        if not all(isinstance(item, str) for item in (value if isinstance(value, list) else [value])):
            raise UserError(f"--config {path}: {name} should be a value, or a list of values")
        values[field] = None if value in UNSET else value
    return values


# --- Options and values in messages ---


def option_name(field: str) -> str:
    """`batch_size` -> `--batch-size`."""
    return "--" + field.replace("_", "-")


def as_typed(value: object) -> str:
    """The value of an option as one types it: `true`, `28 28 1`; None is `unset`."""
    if isinstance(value, list | tuple):
        return " ".join(map(as_typed, value))
    return "unset" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def complaint(error: "ErrorDetails") -> str:
    """What pydantic has to say of a value, without the words that it puts around it: `should be less than 1`."""
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return message.removesuffix(" for <class 'pathlib.Path'>")
