"""Checks files of options, which are given with `--config`."""

from pathlib import Path

import yaml

from common.platform.errors import UserError

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
