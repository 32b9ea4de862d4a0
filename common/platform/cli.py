"""Command lines: every field of a configuration is an option, with YAML files and one-line errors.

cyclopts reads the options and prints --help; pydantic checks types and bounds.
"""

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import App, CycloptsError, Group, Parameter
from cyclopts.config import Yaml
from pydantic import BaseModel, ValidationError

from common.platform.errors import UserError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


Config = TypeVar("Config", bound=BaseModel)
MAX_SHOWN = 100  # characters of a value that a message shows
LAST_GROUP = Group("options from a file, and help", sort_key=100)


def parse_options(schema: type[Config], program: str, about: str, arguments: Sequence[str] | None = None) -> Config:
    """Reads the command line (`arguments`, or sys.argv) into `schema`.

    `--config FILE.yaml` sets any of the options; those of the command line override it. The configuration's
    `model_fields_set` has the options that were given on the command line or in the file. A schema may have `headings`,
    under which --help shows its options, see `common.spec.options.option`.

    Raises:
      UserError: the message is one line that names the option and the value.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    switches = describe_options(schema)
    for index, word in enumerate(words):
        if word in switches and words[index + 1 : index + 2] in (["true"], ["false"], ["auto"]):
            words[index : index + 2] = [f"{word}={words[index + 1]}"]  # cyclopts takes the value of a switch only so
        if word == "" or (word.startswith("--") and word.endswith("=")):
            raise UserError(f"{word[:-1] or words[index - 1]}: is empty")
    usage = f"{program} [--OPTION VALUE ...]"
    app = App(program, help=about, usage=usage, help_format="plaintext", version_flags=(), group_commands=LAST_GROUP)
    app.result_action = "return_value"

    @app.default
    def read(*, options: Annotated[schema | None, Parameter(name="*")] = None) -> Any:  # type: ignore[valid-type]
        return options or schema()

    @app.meta.default
    def read_file(
        *words: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        config: Annotated[Path | None, Parameter(group=LAST_GROUP, help="read options from a YAML file")] = None,
    ) -> Any:
        if config is not None:
            app.config = (_read_options_file(config),)
        return app(words, exit_on_error=False, print_error=False)

    try:
        config: Config | None = app.meta(words, exit_on_error=False, print_error=False)
    except (CycloptsError, ValidationError) as error:
        cause = error if isinstance(error, ValidationError) else error.__cause__
        message = _one_line(cause) if isinstance(cause, ValidationError) else f"{error} (see {program} --help)"
        raise UserError(message) from None
    if config is None:
        sys.exit()  # after --help
    return config


@cache
def describe_options(schema: type[BaseModel]) -> set[str]:
    """Tells cyclopts what --help shows of each option and where. Returns the options that are true or false."""
    headings: dict[str, tuple[str, ...]] = getattr(schema, "headings", {})
    groups = {title: Group(title, sort_key=number) for number, title in enumerate(["most used", *headings, "options"])}
    by_kind = {kind: groups[title] for title, kinds in headings.items() for kind in kinds}
    switches = set()
    for name, field in schema.model_fields.items():
        extra: Any = field.json_schema_extra or {}
        shown = extra.get("shown")
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        if bool in (field.annotation, *getattr(field.annotation, "__args__", ())):
            switches.add(option_name(name))
        field.metadata.append(
            Parameter(
                help=" ".join((field.description or "").split()),
                group=groups["most used"] if shown == "first" else by_kind.get(extra.get("kind"), groups["options"]),
                show=shown != "never",
                consume_multiple=True,
                allow_repeating=True,
                negative=(),
                show_default=default not in (None, [], ()) and as_typed,
            )
        )
    return switches


def _read_options_file(path: Path) -> Yaml:
    """The options in a YAML file. Raises UserError if there is no such file, or if it is not YAML."""
    if not path.is_file():
        raise UserError(f"--config {path}: no such file")
    try:
        (options := Yaml(path)).config  # noqa: B018 - reads the file
    except CycloptsError as error:
        raise UserError(f"--config {path}: {error}") from None
    return options


def to_arguments(config: BaseModel) -> list[str]:
    """The command line that reproduces `config`; it has only the options that differ from their defaults."""
    arguments = []
    for name, value in config.model_dump(mode="json", exclude_defaults=True).items():
        arguments += [option_name(name), *(map(str, value) if isinstance(value, list) else [as_typed(value)])]
    return arguments


# --- Options and values in messages ---


def option_name(field: str) -> str:
    """`batch_size` -> `--batch-size`."""
    return "--" + field.replace("_", "-")


def as_typed(value: object) -> str:
    """The value of an option as one types it: `true`, `28 28 1`; None is `unset`."""
    if isinstance(value, list | tuple):
        return " ".join(map(as_typed, value))
    return "unset" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _one_line(error: ValidationError) -> str:
    """All messages of a validation error in one line: `--batch-size -3: should be greater than 0`."""
    by_option: dict[str, dict[str, None]] = {}
    for item in error.errors():
        missing, key = item["type"] == "missing", ""
        if item["loc"]:  # else a check of several fields, whose message names them
            value = "" if missing else f" {as_typed(item['input'])[:MAX_SHOWN]}"
            key = f"{option_name(str(item['loc'][0]))}{value}: "
        by_option.setdefault(key, {})["is needed" if missing else complaint(item)] = None
    return "; ".join(key + " or ".join(messages) for key, messages in by_option.items())


def complaint(error: "ErrorDetails") -> str:
    """What pydantic has to say of a value, without the words that it puts around it: `should be less than 1`."""
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return message.removesuffix(" for <class 'pathlib.Path'>")
