"""The training step of each implementation, which users of a framework write, with syntax highlighting."""

import ast
from dataclasses import dataclass
from pathlib import Path

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from common.implementations import folder_of, implementation_title
from common.platform.machine import REPOSITORY, code_sha256
from comparison.measure.table import Table

# The training step, as a student would call it: functions and methods of `train.py`.
STEP = ["forward_backward", "train_step"]
STEPS_OF_CLASSES = {
    "keras": ["Classifier.forward_backward", "Classifier.train_step"],
    "ptl": ["Classifier.forward", "Classifier.training_step", "Classifier.configure_optimizers"],
}


@dataclass(frozen=True)
class ShownCode:
    """The training step of an implementation: its file, and its code as HTML."""

    title: str
    file: str
    html: str


def training_code_of_rows(table: Table, repository: Path = REPOSITORY) -> list[ShownCode]:
    """The steps in the order of the rows. One is left out if it has no step, or the code has changed since its runs."""
    now = code_sha256()
    results = {row.implementation: row.results for row in table.rows if row.results}
    steps = []
    for name, of_it in results.items():
        path = repository / folder_of(name) / "train.py"
        if path.exists() and all(result.code_sha256 == now for result in of_it):
            definitions, names = pieces(path.read_text()), STEPS_OF_CLASSES.get(name, STEP)
            if not definitions.keys() >= set(names):
                continue
            code = "\n\n\n".join(definitions[step] for step in names)
            html = highlight(code, PythonLexer(), HtmlFormatter(nowrap=True))
            steps.append(ShownCode(implementation_title(name), f"{folder_of(name)}/train.py", html))
    return steps


def pieces(text: str) -> dict[str, str]:
    """Name of each function, class and method (`Class.method`) -> its source, without indentation."""
    lines = text.splitlines()
    definitions = {}

    def source(node: ast.FunctionDef | ast.ClassDef) -> str:
        start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        return "\n".join(line[node.col_offset :] for line in lines[start - 1 : node.end_lineno])

    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            definitions[node.name] = source(node)
        if isinstance(node, ast.ClassDef):
            methods = [statement for statement in node.body if isinstance(statement, ast.FunctionDef)]
            definitions |= {f"{node.name}.{method.name}": source(method) for method in methods}
    return definitions
