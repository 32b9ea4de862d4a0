"""Prints the train.py and parts.py of all implementations side by side, as a page of Markdown.

python docs/side_by_side.py > side-by-side.md
"""

import ast
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from common.implementations import IMPLEMENTATIONS

GROUPS = (("tf", "pt", "jax"), ("keras", "ptl"))  # the written-out loops, and the trainers
NAMES = [name for group in GROUPS for name in group]
# section: the functions, classes and methods that belong in it, for each implementation
SECTIONS = {
    "A training step": {
        "tf": ["forward_backward", "train_step", "accumulate_step", "update_step"],
        "pt": ["forward_backward", "train_step"],
        "keras": ["Classifier.__init__", "Classifier.call", "Classifier.forward_backward", "Classifier.train_step"],
        "ptl": ["Classifier.__init__", "Classifier.forward", "Classifier.training_step"],
        "jax": ["forward_backward", "train_step"],
    },
    "An evaluation step": {
        "tf": ["eval_step"],
        "pt": ["eval_step", "evaluate"],
        "keras": ["Classifier.compile", "Classifier.metrics", "Classifier.test_step"],
        "ptl": [
            "Classifier.on_validation_epoch_start",
            "Classifier.validation_step",
            "Classifier.on_validation_epoch_end",
        ],
        "jax": ["eval_step"],
    },
    "What is told to the recorder": {"keras": ["Recording"], "ptl": ["Recording"]},
    "The loop": dict.fromkeys(NAMES, ["train"]) | dict.fromkeys(("tf", "jax"), ["make_loop", "train"]),
    "The parts of a training": dict.fromkeys(NAMES, ["Parts", "make_parts"]),
}
INTRODUCTION = """# Side by side

What is written for the same training in each framework: functions and classes of each `train.py`, and of `parts.py`
beside it, which makes what `train` gets; without imports. In each section TensorFlow, PyTorch and JAX stand beside each
other, whose loops are written out, and Keras beside Lightning, whose loops are the framework's.
"""


def code(implementation: str) -> str:
    """The files that are shown, one after the other."""
    return "\n".join((REPOSITORY / f"{implementation}_impl" / name).read_text() for name in ("train.py", "parts.py"))


def pieces(text: str) -> dict[str, str]:
    """Name of each function, class and method (`Class.method`) -> its source, without indentation."""
    lines = text.splitlines()
    definitions = {}
    for node in ast.parse(text).body:
        inner = [(f"{node.name}.", part) for part in node.body] if isinstance(node, ast.ClassDef) else []
        for prefix, part in (("", node), *inner):
            if isinstance(part, ast.FunctionDef | ast.ClassDef):
                start = min([part.lineno, *(decorator.lineno for decorator in part.decorator_list)])
                source = [line[part.col_offset :] for line in lines[start - 1 : part.end_lineno]]
                definitions[f"{prefix}{part.name}"] = "\n".join(source)
    return definitions


def make_page() -> str:
    """The page as Markdown, with a table for each section and group."""
    definitions = {name: pieces(code(name)) for name in NAMES}
    parts = [INTRODUCTION]
    for section, names in SECTIONS.items():
        parts.append(f"## {section}\n")
        for group in GROUPS:
            if not any(name in names for name in group):
                continue
            columns = ["\n\n\n".join(definitions[name][definition] for definition in names[name]) for name in group]
            heads = "".join(f"<th>{IMPLEMENTATIONS[name].title}</th>" for name in group)
            # With blank lines around it, the content of a cell is read as Markdown.
            cells = "</td><td>".join(f"\n\n```python\n{column}\n```\n\n" for column in columns)
            parts.append(f'<table><tr>{heads}</tr><tr valign="top"><td>{cells}</td></tr></table>\n')
    return "\n".join(parts)


if __name__ == "__main__":
    print(make_page())
