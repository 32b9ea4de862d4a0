"""Command lines: every field of a configuration is an option, with YAML files and one-line errors."""

import re
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import yaml
from jsonargparse import ActionConfigFile, ArgumentParser
from pydantic import BaseModel, Field, ValidationError

from common.platform.errors import UserError, option_name

Config = TypeVar("Config", bound=BaseModel)
_NOT_GIVEN = "\0"  # no command line can contain this character
MAX_SHOWN = 100  # characters of a value that a message shows


class _Parser(ArgumentParser):
    """Reads options and files as text with jsonargparse; pydantic checks types and bounds."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        message = message.removeprefix("argument ").replace("unrecognized arguments:", "unknown option")
        message = re.sub(r'^Parser key "(\w+)":', lambda found: option_name(found[1]) + ":", message)
        raise UserError(f"{message} (see {self.prog} --help)") from ex


class _OptionsFile(ActionConfigFile):
    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: Any = None) -> None:
        check_options_file(Path(values))
        super().__call__(parser, cfg, values, option_string)  # type: ignore[no-untyped-call]


def positional(metavar: str, description: str) -> Any:
    """A field for positional arguments: one or more words without an option name."""
    return Field(min_length=1, description=description, json_schema_extra={"positional": metavar})


def parse_options(schema: type[Config], program: str, about: str, arguments: Sequence[str] | None = None) -> Config:
    """Reads the command line (`arguments`, or sys.argv) into `schema`.

    `--config FILE.yaml` sets any of the options; options after it override them. The configuration's `model_fields_set`
    has the options that were given on the command line or in the file.

    Raises:
      UserError: the message is one line that names the option and the value.
    """
    _check_names(_typed(arguments))
    parser = _Parser(prog=program, description=about, allow_abbrev=False)
    parser.add_argument("--config", action=_OptionsFile, metavar="FILE.yaml", help="read options from a YAML file")
    properties = schema.model_json_schema(mode="validation")
    for name, field in schema.model_fields.items():
        shape = properties["properties"][name]
        allowed = _allowed(shape, properties.get("$defs", {}))
        many = _array(shape)
        if many == "+" and [item.partition("=")[0] for item in _typed(arguments)].count(option_name(name)) > 1:
            raise UserError(f"{option_name(name)}: given twice; list all its values after one")
        if isinstance(field.json_schema_extra, dict) and "positional" in field.json_schema_extra:
            parser.add_argument(name, nargs="+", metavar=field.json_schema_extra["positional"], help=field.description)
            continue
        parser.add_argument(
            option_name(name),
            default=None if field.is_required() else field.get_default(call_default_factory=True),
            help=f"{field.description} (needed)" if field.is_required() else field.description,
            metavar=("H", "W", "C") if many == 3 else allowed,
            **({"nargs": "?", "const": True} if _switch(shape) else {"nargs": many or None}),
        )
    parser.parse_args(arguments)  # for --help, and for errors that it finds
    parser.set_defaults(dict.fromkeys(schema.model_fields, _NOT_GIVEN))
    options = parser.parse_args(arguments)
    values = {name: getattr(options, name) for name in schema.model_fields}
    values = {name: value for name, value in values.items() if value != _NOT_GIVEN}
    for name, value in values.items():
        if value == "":
            raise UserError(f"{option_name(name)}: is empty")
    try:
        return schema(**values)
    except ValidationError as error:
        raise UserError(_one_line(error)) from None


def _check_names(arguments: Sequence[str]) -> None:
    """Raises UserError if an argument, or the path of the current folder, can't be written to a file or a terminal."""
    try:
        around = str(Path.cwd())
    except OSError as error:
        raise UserError(f"the current folder can't be found: {error.strerror}") from None
    for argument in [*arguments, around]:
        if any(
            "\ud800" <= letter <= "\udfff" for letter in argument
        ):  # surrogates: how Python represents undecodable bytes
            encoding = sys.getfilesystemencoding()
            raise UserError(f"{argument!a}: can't be read in this system's encoding, {encoding}; PYTHONUTF8=1 may help")
        if any(unicodedata.category(letter) == "Cc" for letter in argument):
            raise UserError(f"{argument!a}: has control characters, which would change what a terminal shows")


def _typed(arguments: Sequence[str] | None) -> Sequence[str]:
    return sys.argv[1:] if arguments is None else arguments


def to_arguments(config: BaseModel) -> list[str]:
    """The command line that reproduces `config`; it has only the options that differ from their defaults."""
    arguments = []
    for name, value in config.model_dump(mode="json", exclude_defaults=True).items():
        texts = value if isinstance(value, list) else [str(value).lower() if isinstance(value, bool) else value]
        arguments += [option_name(name), *map(str, texts)]
    return arguments


# --- What --help and errors say of types and bounds, from the JSON schema of the configuration ---

MANY = 10**5  # larger bounds are not shown: a user exceeds them only by mistake
LONGEST_CHOICE = 70  # characters of names in braces; longer lists do not fit a terminal and are in the description


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


def _one_line(error: ValidationError) -> str:
    """All messages of a validation error in one line: `--batch-size -3: should be greater than 0`."""
    by_option: dict[str, list[str]] = {}
    for item in error.errors():
        message = item["msg"].removeprefix("Value error, ").removeprefix("Input ")
        if not item["loc"]:  # a check of several fields, whose message names them
            by_option.setdefault("", []).append(message)
            continue
        if item["type"] == "missing":
            by_option[f"{option_name(str(item['loc'][0]))}: "] = ["is needed"]
            continue
        value = item["input"]
        shown = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        shown = shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]}..."
        key = f"{option_name(str(item['loc'][0]))} {shown}: "
        by_option.setdefault(key, []).append(message)
    return "; ".join(key + " or ".join(dict.fromkeys(messages)) for key, messages in by_option.items())


# --- Files of options, for --config ---

MAX_BYTES = 2**20
MAX_DEPTH = 4
MAX_VALUE = 1000  # characters


def check_options_file(path: Path) -> None:
    """Raises UserError for a file that is not a plain mapping of options to values, before objects are built from it.

    Anchors and aliases are refused: with them a small file can expand to a huge or endless one, and options need none.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"--config {path}: {path.stat().st_size:,} bytes; {MAX_BYTES:,} at most")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no text in UTF-8"
        raise UserError(f"--config {path}: {reason}") from None
    depth, keys, is_key = 0, set[str](), False
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            line = f"--config {path}: line {event.start_mark.line + 1 if event.start_mark else 1}"
            if getattr(event, "anchor", None) is not None:  # an alias has one, too
                raise UserError(f"{line}: anchors and aliases (& and *) are not for files of options")
            if isinstance(event, yaml.ScalarEvent):
                if len(event.value) > MAX_VALUE:
                    raise UserError(f"{line}: a value of {len(event.value):,} letters; {MAX_VALUE:,} at most")
                is_key = depth == 1 and not is_key
                if is_key and event.value in keys:
                    raise UserError(f"{line}: {event.value} is given twice")
                keys |= {event.value} if is_key else set()
            elif isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                is_key = False
                if depth > MAX_DEPTH or (depth == 1 and not isinstance(event, yaml.MappingStartEvent)):
                    raise UserError(f"{line}: should hold lines of OPTION: VALUE")
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
    except yaml.YAMLError as error:
        raise UserError(f"--config {path}: not YAML: {' '.join(str(error).split())}") from None
