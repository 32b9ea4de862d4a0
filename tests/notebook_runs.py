"""Helpers for notebooks: run one from top to bottom, and compare one with its paired text file."""

from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient


def run_notebook(path):
    """Runs a notebook; returns all outputs of its code cells, and what they print. Fails if a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return outputs, "".join(one.text for one in outputs if one.output_type == "stream" and one.name == "stdout")


def assert_paired(path):
    """Checks that a notebook equals its paired text file, and contains no outputs and no path of the home folder."""
    notebook, text = nbformat.read(path, as_version=4), jupytext.read(path.with_suffix(".py"))
    assert [(cell.cell_type, cell.source) for cell in notebook.cells] == [
        (cell.cell_type, cell.source) for cell in text.cells
    ]
    for cell in notebook.cells:
        assert cell.cell_type == "markdown" or (not cell.outputs and cell.execution_count is None)
    assert str(Path.home()) not in path.read_text()
