"""`comparison.load`: rows, runs, epochs and steps as DataFrames, and the page that documents their columns."""

import json
import re
import sys

import pandas as pd
import pytest
from conftest import REPOSITORY, run
from made_up import MadeUp, comparison

from common.platform.errors import UserError
from common.spec.options import TRAINED, TrainConfig, options_of_kind
from comparison import load
from comparison.measure.frames import WHICH_RUN
from comparison.show.export import write_tables
from docs.columns import make_page

PAGE = (REPOSITORY / "docs" / "columns.md").read_text()


def truth(job):
    if job.implementation == "ptl" and job.round == 2:
        return MadeUp(failure="ended with status 1")
    return MadeUp(speed=1000.0 * job.round, accuracies=(0.5, 0.9, 0.95))


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("load")
    write_tables(comparison(folder, truth, repeats=3, seeds=[0, 2**62 + 1], sweep=["batch-size=32,64"], epochs=3))
    return folder


@pytest.fixture(scope="module")
def found(stored):
    return load(stored)


def test_the_files_are_written_from_rows_and_runs(stored, found):
    for name, frame in (("results.csv", found.rows), ("runs.csv", found.runs)):
        read = pd.read_csv(stored / name, dtype=frame.dtypes.to_dict())
        pd.testing.assert_frame_equal(read, frame, check_exact=True)
    results = json.loads((stored / "results.json").read_text())
    assert len(found.rows) == len(results["rows"]) == 6 and len(found.runs) == len(results["runs"]) == 36
    for line, row in zip(found.rows.to_dict("records"), results["rows"], strict=True):
        assert line["status"] == row["status"] and line["ratio"] == pytest.approx(row["ratio"], nan_ok=True)
    assert found.warnings == results["warnings"] and found.missing == 0


def test_runs_have_what_was_measured_and_the_options_they_were_run_with(stored, found):
    runs = found.runs.set_index("run_dir")
    assert runs.index.is_unique
    result = json.loads((stored / "runs/batch-size=32/seed-0/round-3/pt/result.json").read_text())
    line = runs.loc["runs/batch-size=32/seed-0/round-3/pt"]
    for name in ("images_per_second", "test_correct", "wall_seconds", "num_steps", "code_sha256"):
        assert line[name] == result[name]
    assert line["training_seconds"] == result["phase_seconds"]["training"]
    assert (line["batch_size"], line["precision"], line["variant"]) == (32, "32", "batch-size=32")
    assert set(runs["seed"]) == {0, 2**62 + 1}  # a float can't represent the second seed exactly
    failed = runs[runs["failure"].notna()]
    assert len(failed) == 4 and failed["images_per_second"].isna().all() and set(failed["implementation"]) == {"ptl"}


def test_epochs_and_steps_are_those_of_the_metrics(stored, found):
    for run_dir in found.runs["run_dir"]:
        path = stored / run_dir / "metrics.jsonl"
        written = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        epochs = found.epochs[found.epochs["run_dir"] == run_dir]
        steps = found.steps[found.steps["run_dir"] == run_dir]
        assert [one["test_loss"] for one in written if one["kind"] == "epoch"] == list(epochs["test_loss"])
        assert [one["loss"] for one in written if one["kind"] == "step"] == list(steps["loss"])
        if written:
            batch_size = int(found.runs.set_index("run_dir").loc[run_dir, "batch_size"])
            assert list(steps["epoch"]) == sorted([1, 2, 3] * (640 // batch_size))
            assert list(steps["step"]) == [*range(1, len(steps) + 1)]


def test_columns_have_their_types_where_nothing_is_known(tmp_path, found):
    comparison(tmp_path, lambda job: MadeUp(failure="ended with status 1"))
    failed = load(tmp_path)
    for name in ("rows", "runs", "epochs", "steps"):
        pd.testing.assert_series_equal(getattr(failed, name).dtypes, getattr(found, name).dtypes)
    assert len(failed.runs) == 3 and failed.epochs.empty and failed.steps.empty


def test_a_comparison_that_is_still_being_made_can_be_read(tmp_path):
    comparison(tmp_path, only=lambda job: job.round == 1, repeats=2)
    found = load(str(tmp_path))
    assert found.missing == 3 and len(found.runs) == 3


def test_a_folder_without_a_comparison_is_reported_in_a_line(tmp_path):
    with pytest.raises(UserError, match=f"^load {re.escape(str(tmp_path))}: holds no comparison; .*$"):
        load(tmp_path)


def documented(section):
    """Names of the columns in the table of a section."""
    text = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return [name for cell in cells for name in re.findall("`(.*?)`", cell)]


def test_the_page_names_every_column_in_order(found):
    which = documented("Which run")
    assert which == [*WHICH_RUN]
    assert make_page() == PAGE, "python docs/columns.py makes it again"
    assert documented("rows") == [*found.rows.columns]
    options = {*options_of_kind(TrainConfig, *TRAINED)}
    assert documented("runs") == [name for name in found.runs.columns if name not in {*which, *options}]
    assert options < {*found.runs.columns}
    assert [*which, *documented("turns")] == [*found.turns.columns]
    assert [*which, *documented("epochs")] == [*found.epochs.columns]
    assert [*which, *documented("steps")] == [*found.steps.columns]


def test_the_page_s_example_runs_and_imports_no_framework(stored):
    code = re.search("```python\n(.*?)```", PAGE, re.DOTALL)[1]
    assert 'load("results/example")' in code
    code = code.replace("results/example", str(stored)) + "\nimport sys; print('loaded:', *sys.modules)"
    output = run(sys.executable, "-W", "error", "-c", code, MPLBACKEND="agg").stdout
    assert "(ptl, plain)" in output or "ptl" in output
    loaded = {name.split(".")[0] for name in output.partition("loaded: ")[2].split()}
    assert "pandas" in loaded and not loaded & {"tensorflow", "keras", "torch", "lightning"}
