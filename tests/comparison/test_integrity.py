"""Damaged, cut off or foreign files of a run make it a failed run; the others are shown."""

import os

import numpy as np
import pytest
from made_up import comparison

from common.platform.errors import UserError
from common.record.predictions import Predictions
from comparison import load


def foreign_predictions(run):
    labels = Predictions.read(run).labels.astype(np.int64)
    Predictions.make(np.eye(10)[0 * labels], labels, np.zeros((len(labels), 8, 8, 1), np.uint8)).write(run)


def missing_step(run):
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(line for line in lines if '"step": 20,' not in line))


# What happened to a run's files, and the message.
CHANGES = [
    (foreign_predictions, "predictions.safetensors: 35 of 355 are right, the result says 320 of 355"),
    (missing_step, "metrics.jsonl: 19 steps, the result says 20"),
    (lambda run: os.truncate(run / "result.json", 100), "result.json: not valid: "),
    (lambda run: os.truncate(run / "run.json", 100), "run.json: not valid: "),
]


def test_damaged_files_are_a_failed_run_that_says_why(tmp_path):
    for number, (damage, reason) in enumerate(CHANGES):
        folder = tmp_path / str(number)
        comparison(folder, repeats=2, implementations=["tf", "pt"], verify="never")
        run_dir = folder / "runs" / "seed-0" / "round-2" / "pt"
        damage(run_dir)
        found = load(folder)
        assert list(found.rows["status"]) == ["ok", "some failed"] and list(found.rows["num_rounds"]) == [2, 1]
        (failure,) = found.runs["failure"].dropna()
        assert reason in failure and len(found.runs) == 4 and not found.missing


def test_a_damaged_or_missing_comparison_is_one_line(tmp_path):
    with pytest.raises(UserError, match="holds no comparison; "):
        load(tmp_path)
    (tmp_path / "comparison.json").write_text("{")
    with pytest.raises(UserError, match=r"comparison.json: not valid: "):
        load(tmp_path)
