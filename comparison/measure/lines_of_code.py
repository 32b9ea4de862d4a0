"""Counts the lines of code that a framework's training takes."""

import io
import tokenize
from functools import cache

from common.implementations import folder_of
from common.platform.machine import REPOSITORY

LAYOUT = {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
NO_CODE = LAYOUT | {tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER}


@cache
def lines_of_training(implementation: str, mode: str) -> int | None:
    """Lines of code in `train.py`, `parts.py` and, for tuned, `tuning.py`; None if one of them is missing.

    None for tutorial: it replaces parts of plain, and the files have both.
    """
    if mode == "tutorial":
        return None
    names = ["train.py", "parts.py", *(["tuning.py"] if mode == "tuned" else [])]
    paths = [REPOSITORY / folder_of(implementation) / name for name in names]
    return sum(count_lines(path.read_text()) for path in paths) if all(path.exists() for path in paths) else None


def count_lines(source: str) -> int:
    """The number of lines with a Python token that is neither a comment nor a docstring."""
    lines: set[int] = set()
    begins = True  # whether a statement begins here: a string at its beginning is a docstring
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in NO_CODE:
            begins = begins or token.type in LAYOUT
            continue
        if not (begins and token.type == tokenize.STRING):
            lines.update(range(token.start[0], token.end[0] + 1))
        begins = False
    return len(lines)
