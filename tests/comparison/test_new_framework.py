"""A new framework is a folder and a line: one in numpy (tests/fakes/np_impl) trains as the others do."""

import json
import sys

import pytest
from conftest import CPU, ONE_ROUND, read_csv, run

BEGINS = "IMPLEMENTATIONS = {\n"
LINE = '    "np": Implementation("Numpy", "loop written out", "numpy"),\n'
SHORT = (*CPU, "--train-size", 300, "--epochs", 2, "--batch-size", 64, "--nesterov", "true", "--weight-decay", 1e-3)


@pytest.mark.slow
def test_it_is_a_row_that_is_proved_to_be_the_same_training(project, tmp_path):
    registry = project / "common" / "implementations.py"
    registry.write_text(registry.read_text().replace(BEGINS, BEGINS + LINE))
    rows = ("--implementations", "pt", "numpy", "--output-dir", tmp_path / "r")
    text = run(sys.executable, "compare.py", *rows, *SHORT, *ONE_ROUND, cwd=project).stdout
    assert "same training: yes, proved in 64-bit runs" in text and "Numpy" in text
    found = read_csv(tmp_path / "r" / "results.csv")
    assert [(row["implementation"], row["status"], row["same_training"]) for row in found] == [
        ("pt", "ok", ""),
        ("np", "ok", "True"),
    ]
    trained = tmp_path / "r/runs/seed-0/round-1/np"
    options = ("--weights", trained / "model.safetensors", "--format", "json", "--accelerator", "cpu")
    evaluated = json.loads(run(sys.executable, "-m", "np_impl", "evaluate", *options, cwd=project).stdout)
    assert evaluated["test_correct"] == json.loads((trained / "result.json").read_text())["test_correct"]
