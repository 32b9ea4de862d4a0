"""`comparison.load`: rows, runs, epochs and steps as DataFrames, and the page that documents their columns.

Damaged, cut off or foreign files of a run make it a failed run; the others are shown.
"""

import json
import os
import re
import sys

import numpy as np
import pandas as pd
import pytest
from conftest import REPOSITORY, run
from made_up import MadeUp, comparison, shown

from common.platform.errors import UserError
from common.record.predictions import Predictions
from common.spec.options import TRAINED_KINDS, TrainConfig, options_of_kind
from comparison import load
from docs.columns import make_page

PAGE = (REPOSITORY / "docs" / "columns.md").read_text()


def truth(job):
    if job.implementation == "ptl" and job.round == 2:
        return MadeUp(failure="ended with status 1")
    return MadeUp(speed=1000.0 * job.round, accuracies=(0.5, 0.9, 0.95))


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("load")
    comparison(folder, truth, repeats=3, seeds=[0, 2**62 + 1], sweep=["batch-size=32,64"], epochs=3)
    shown(folder)
    return folder


@pytest.fixture(scope="module")
def found(stored):
    return load(stored)


def test_the_files_are_written_from_rows_and_runs(stored, found):
    for name, frame in (("results.csv", found.rows), ("runs.csv", found.runs)):
        read = pd.read_csv(stored / name, dtype=frame.dtypes.to_dict())
        pd.testing.assert_frame_equal(read, frame, check_exact=True)
    assert len(found.rows) == 6 and len(found.runs) == 36 and found.missing == 0
    content = json.loads((stored / "results.json").read_text())
    assert content["warnings"] == found.warnings and len(content["runs"]) == 36
    for name in ("ratio", "verdict", "images_per_second"):  # null if unknown
        assert [row[name] is None for row in content["rows"]] == found.rows[name].isna().tolist()
    assert [row["ratio"] for row in content["rows"]] == found.rows["ratio"].tolist()


def test_runs_epochs_and_steps_are_what_was_measured(stored, found):
    runs = found.runs.set_index("run_dir")
    assert runs.index.is_unique and set(runs["seed"]) == {0, 2**62 + 1}  # a float can't represent the second exactly
    failed = runs[runs["failure"].notna()]
    assert len(failed) == 4 and failed["images_per_second"].isna().all() and set(failed["implementation"]) == {"ptl"}
    name = "runs/batch-size=32/seed-0/round-3/pt"
    result = json.loads((stored / name / "result.json").read_text())
    for column in ("images_per_second", "test_correct", "wall_seconds", "num_steps", "code_sha256"):
        assert runs.loc[name, column] == result[column]
    assert runs.loc[name, "training_seconds"] == result["phase_seconds"]["training"]
    assert (runs.loc[name, "batch_size"], runs.loc[name, "variant"]) == (32, "batch-size=32")
    written = [json.loads(line) for line in (stored / name / "metrics.jsonl").read_text().splitlines()]
    epochs, steps = (frame[frame["run_dir"] == name] for frame in (found.epochs, found.steps))
    assert [line["test_loss"] for line in written if line["kind"] == "epoch"] == list(epochs["test_loss"])
    assert [line["loss"] for line in written if line["kind"] == "step"] == list(steps["loss"])
    assert list(steps["epoch"]) == sorted([1, 2, 3] * 20) and list(steps["step"]) == [*range(1, 61)]


def test_columns_have_their_types_where_nothing_is_known(tmp_path, found):
    failed = comparison(tmp_path, lambda job: MadeUp(failure="ended with status 1"))
    for name in ("rows", "runs", "epochs", "steps"):
        pd.testing.assert_series_equal(getattr(failed, name).dtypes, getattr(found, name).dtypes)
    assert len(failed.runs) == 3 and failed.epochs.empty and failed.steps.empty


# --- Damaged files ---


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


# --- The page ---


def documented(section):
    """Names of the columns in the table of a section of the page."""
    text = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return [name for cell in cells for name in re.findall("`(.*?)`", cell)]


def test_the_page_names_every_column_in_order(found):
    assert make_page() == PAGE, "python docs/columns.py makes it again"
    which, options = documented("Which run"), {*options_of_kind(TrainConfig, *TRAINED_KINDS)}
    assert documented("rows") == [*found.rows.columns]
    assert documented("runs") == [name for name in found.runs.columns if name not in {*which, *options}]
    for name in ("turns", "epochs", "steps"):
        assert [*which, *documented(name)] == [*getattr(found, name).columns]


def test_the_pages_example_runs_and_imports_no_framework(stored):
    code = re.search("```python\n(.*?)```", PAGE, re.DOTALL)[1].replace("results/example", str(stored))
    code += "\nimport sys; print('loaded:', *sys.modules)"
    output = run(sys.executable, "-W", "error", "-c", code, MPLBACKEND="agg").stdout
    loaded = {name.split(".")[0] for name in output.partition("loaded: ")[2].split()}
    assert "pandas" in loaded and not loaded & {"tensorflow", "keras", "torch", "lightning"}
