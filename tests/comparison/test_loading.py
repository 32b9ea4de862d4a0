"""`comparison.load`: rows, runs, epochs and steps as DataFrames, and the page that documents their columns."""

import json
import re
import sys

import pandas as pd
import pytest
from conftest import REPOSITORY, run
from made_up import MadeUp, comparison, shown

from common.spec.options import TRAINED, TrainConfig, options_of_kind
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


def documented(section):
    """Names of the columns in the table of a section of the page."""
    text = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return [name for cell in cells for name in re.findall("`(.*?)`", cell)]


def test_the_page_names_every_column_in_order(found):
    assert make_page() == PAGE, "python docs/columns.py makes it again"
    which, options = documented("Which run"), {*options_of_kind(TrainConfig, *TRAINED)}
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
