"""Notebooks: run from top to bottom, and the same as the text that they are paired with."""

from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient


def run_notebook(path):
    """All outputs of its code, in order. Fails where a cell does."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def assert_paired(path):
    """And that it holds no outputs, and no path of a home."""
    notebook, text = nbformat.read(path, as_version=4), jupytext.read(path.with_suffix(".py"))
    assert [(cell.cell_type, cell.source) for cell in notebook.cells] == [
        (cell.cell_type, cell.source) for cell in text.cells
    ]
    for cell in notebook.cells:
        assert cell.cell_type == "markdown" or (not cell.outputs and cell.execution_count is None)
    assert str(Path.home()) not in path.read_text()
