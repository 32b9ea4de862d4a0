"""What the whole must reach."""

import csv
import sys

import pytest
from conftest import run


def compare(folder, *options):
    run(sys.executable, "compare.py", "--output-dir", folder, "--accelerator", "cpu", *options, timeout=1500)
    with open(folder / "results.csv") as file:
        return list(csv.DictReader(file))


def test_defaults_reach_97_percent_on_digits_in_lockstep(tmp_path):
    rows = compare(tmp_path / "r")
    assert [row["implementation"] for row in rows] == ["tf", "pt", "ptl"]
    assert all(row["status"] == "ok" and row["table"] == "1" for row in rows)
    assert all(float(row["test_accuracy"]) > 0.97 for row in rows)


@pytest.mark.slow
def test_lenet_reaches_98_8_percent_on_mnist(tmp_path, data_dir):
    options = ("--dataset", "mnist", "--data-dir", data_dir, "--model", "lenet", "--epochs", 3)
    accuracies = [float(row["test_accuracy"]) for row in compare(tmp_path / "r", *options)]
    assert len(accuracies) == 3 and min(accuracies) >= 0.988
    assert max(accuracies) - min(accuracies) <= 0.003
