"""Targets for whole comparisons."""

import pytest
from conftest import compare

ON_THE_CPU = ("--accelerator", "cpu")


@pytest.mark.slow
def test_defaults_reach_97_percent_on_digits_in_lockstep(tmp_path):
    _, rows = compare(tmp_path / "r", *ON_THE_CPU, "--repeats", 3)
    assert [row["implementation"] for row in rows] == ["tf", "pt", "ptl"]
    assert all(row["status"] == "ok" and row["table"] == "1" for row in rows)
    assert all(float(row["test_accuracy"]) > 0.97 for row in rows)
    # The rest is the time that the processes take to end, which a run can't report itself.
    assert all(float(row["rest_seconds"]) < 0.4 * float(row["wall_seconds"]) for row in rows)


@pytest.mark.slow
def test_lenet_reaches_98_8_percent_on_mnist(tmp_path, data_dir):
    options = ("--dataset", "mnist", "--data-dir", data_dir, "--model", "lenet", "--epochs", 3)
    _, rows = compare(tmp_path / "r", *ON_THE_CPU, *options, timeout=1500)
    accuracies = [float(row["test_accuracy"]) for row in rows]
    assert len(accuracies) == 3 and min(accuracies) >= 0.988
    assert max(accuracies) - min(accuracies) <= 0.003
