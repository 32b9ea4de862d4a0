"""Counts the lines of code that a framework's training takes."""

import ast
import io
import tokenize
from functools import cache

from common.implementations import folder_of
from common.platform.machine import REPOSITORY

NO_CODE = {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER}


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
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type not in NO_CODE]
    code = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    values = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr)]
    strings = [value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]
    return len(code.difference(*(range(string.lineno, (string.end_lineno or 0) + 1) for string in strings)))
