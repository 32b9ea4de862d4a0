"""Targets for whole comparisons: accuracy, time and size of the report."""

import json
import sys
import time
from datetime import datetime, timedelta

import pytest
from conftest import ONE_ROUND, read_csv, run

from common.record.timeline import SHOWN_PHASES


def compare(folder, *options):
    run(sys.executable, "compare.py", "--output-dir", folder, "--accelerator", "cpu", *options, timeout=1500)
    return read_csv(folder / "results.csv")


@pytest.mark.slow
def test_defaults_reach_97_percent_on_digits_in_lockstep(tmp_path):
    rows = compare(tmp_path / "r")
    assert [row["implementation"] for row in rows] == ["tf", "pt", "ptl"]
    assert all(row["status"] == "ok" and row["table"] == "1" for row in rows)
    assert all(float(row["test_accuracy"]) > 0.97 for row in rows)
    for row in rows:
        wall = float(row["wall_seconds"])
        assert sum(float(row[f"{phase}_seconds"]) for phase in SHOWN_PHASES) == pytest.approx(wall, rel=0.02)
        # The rest is the time that the processes take to end, which a run can't report itself.
        assert float(row["rest_seconds"]) < 0.4 * wall


@pytest.mark.slow
def test_five_rounds_take_less_than_six_minutes_and_little_is_added_to_the_runs(tmp_path):
    compare(tmp_path / "first", *ONE_ROUND)  # the second comparison reuses the proof of this one
    started = time.monotonic()
    rows = compare(tmp_path / "r", "--repeats", 5)
    seconds = time.monotonic() - started
    runs = json.loads((tmp_path / "r" / "results.json").read_text())["runs"]
    starts = [datetime.fromisoformat(run["started"]) for run in runs]
    ends = [start + timedelta(seconds=run["process_seconds"]) for start, run in zip(starts, runs, strict=True)]
    busy = (max(ends) - min(starts)).total_seconds()
    assert len(runs) == 15 and seconds < 360
    assert seconds - busy < 10, (seconds, busy)  # imports, tables and the report
    assert all(row["num_rounds"] == "5" for row in rows)
    assert (tmp_path / "r" / "report.html").stat().st_size < 5e6


@pytest.mark.slow
def test_lenet_reaches_98_8_percent_on_mnist(tmp_path, data_dir):
    options = ("--dataset", "mnist", "--data-dir", data_dir, "--model", "lenet", "--epochs", 3)
    accuracies = [float(row["test_accuracy"]) for row in compare(tmp_path / "r", *ONE_ROUND, *options)]
    assert len(accuracies) == 3 and min(accuracies) >= 0.988
    assert max(accuracies) - min(accuracies) <= 0.003
