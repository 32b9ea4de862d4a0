"""A new framework is a folder and a line: a fifth one in numpy (tests/fakes/np_impl) trains as the others do."""

import json
import sys

import pytest
from conftest import CPU, ONE_ROUND, changed_code, read_csv, run

LINE = '    "np": Implementation("Numpy", "loop written out", "numpy"),\n'
SHORT = (*CPU, "--train-size", 300, "--epochs", 2, "--batch-size", 64, "--nesterov", "true", "--weight-decay", 1e-3)


@pytest.fixture(scope="module")
def with_numpy(tmp_path_factory, project):
    """The project's code with the folder `np_impl`, and with its line in the registry."""
    folder = tmp_path_factory.mktemp("numpy")
    begins = "IMPLEMENTATIONS = {\n"
    changed_code(folder, "common/implementations.py", begins, begins + LINE)
    (folder / "np_impl").symlink_to(project / "np_impl")
    return folder


def test_it_is_a_row_that_is_proved_to_be_the_same_training(with_numpy, tmp_path):
    rows = ("--implementations", "pt", "numpy", "--output-dir", tmp_path / "r")
    text = run(sys.executable, "compare.py", *rows, *SHORT, *ONE_ROUND, cwd=with_numpy).stdout
    assert "same training: yes, proved in 64-bit runs" in text and "Numpy" in text
    found = read_csv(tmp_path / "r" / "results.csv")
    assert [(row["implementation"], row["status"], row["same_training"]) for row in found] == [
        ("pt", "ok", ""),
        ("np", "ok", "True"),
    ]
    trained = tmp_path / "r/runs/seed-0/round-1/np"
    options = ("--weights", trained / "model.safetensors", "--format", "json", "--accelerator", "cpu")
    evaluated = json.loads(run(sys.executable, "-m", "np_impl", "evaluate", *options, cwd=with_numpy).stdout)
    assert evaluated["test_correct"] == json.loads((trained / "result.json").read_text())["test_correct"]


def test_without_its_line_there_is_a_line(project):
    done = run(sys.executable, "-m", "np_impl", cwd=project, expect=2)
    assert done.stderr == "python -m np_impl: error: np_impl: common/implementations.py has no entry 'np'\n"
