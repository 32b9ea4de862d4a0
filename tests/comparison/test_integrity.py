"""A stored result is checked against the run's other files, and a digest detects all other changes."""

import json
import shutil
import sys

import numpy as np
import pytest
from conftest import REPOSITORY, read_csv, run
from made_up import comparison

from common.record.predictions import Predictions
from common.record.results import SCHEMA_VERSION
from comparison.measure.summary import find_runs
from comparison.plan.request import Request
from comparison.run.integrity import files_sha256
from comparison.run.program import RECORD_FILE, Record


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A comparison as compare.py writes it, with the digests of its runs."""
    folder = tmp_path_factory.mktemp("made") / "r"
    comparison(folder, repeats=2, implementations=["tf", "pt"], verify="never")
    return folder


def seal(run_dir):
    """Makes the digest match a run's files as they are now, as a user who has changed them might do."""
    record = Record.model_validate_json((run_dir / RECORD_FILE).read_text())
    record = record.model_copy(update={"files_sha256": files_sha256(run_dir)})
    (run_dir / RECORD_FILE).write_text(record.model_dump_json())


def change(path, **values):
    content = json.loads(path.read_text())
    assert values.keys() <= content.keys()
    path.write_text(json.dumps({**content, **values}))


def other_evaluation(run):
    change(run / "result.json", test_correct=355, test_accuracy=1.0)


def faster(run):
    change(run / "result.json", images_per_second=1e5)


def slightly_faster(run):
    change(run / "result.json", images_per_second=1010.0)


def without_digest(run):
    slightly_faster(run)
    change(run / RECORD_FILE, files_sha256=None)


def other_config(run):
    change(run / "config.json", learning_rate=0.5)


def other_implementation(run):
    change(run / "result.json", implementation="ptl")


def other_process(run):
    change(run / "result.json", started="2026-01-01T00:10:00Z")


def other_seconds(run):
    change(run / "result.json", epoch_train_seconds=[1.0, 1.0])


def other_seed(run):
    change(run / RECORD_FILE, seed=1)


def other_round(run):
    shutil.rmtree(run)
    shutil.copytree(run.parent.parent / "round-1" / "pt", run)


def foreign_files(run):
    for name in ("result.json", "metrics.jsonl", "predictions.safetensors", "config.json"):
        shutil.copy(run.parent.parent / "round-1" / "pt" / name, run)
    slightly_faster(run)


def foreign_predictions(run):
    labels = Predictions.read(run).labels.astype(np.int64)
    Predictions.make(np.eye(10)[0 * labels], labels, np.zeros((len(labels), 8, 8, 1), np.uint8)).write(run)


def shorter_metrics(run):
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:5] + lines[6:]))


def older_schema(run):
    change(run / "result.json", schema_version=SCHEMA_VERSION - 1)


def metrics_folder(run):
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()


def damaged_record(run):
    (run / RECORD_FILE).write_bytes(b"\xff\xfe")


# Change of a run's files; whether the digest is made to match, so that another check must find the change; message.
CHANGES = [
    (other_evaluation, True, "result.json: its last evaluation is not the last one of metrics.jsonl"),
    (other_evaluation, False, "result.json: its last evaluation is not the last one of metrics.jsonl"),
    (faster, True, "result.json: 100,000.0 images per second; its samples in metrics.jsonl say "),
    (slightly_faster, False, "its files have been changed since the run ended"),
    (without_digest, False, "its files have been changed since the run ended"),
    (other_config, True, "config.json: is not the configuration of result.json"),
    (other_implementation, True, "result.json: is of another run: implementation ptl, should be pt"),
    (other_process, True, "result.json: is of another process, started 2026-01-01 00:10:00 UTC for 11.5 s"),
    (other_seconds, True, "result.json: the seconds of its epochs are not those of metrics.jsonl"),
    (other_seed, True, "run.json: is of another run: seed 1, should be 0"),
    (other_round, False, "run.json: is of another run: round 1, should be 2"),
    (foreign_files, False, "its files have been changed since the run ended"),
    (foreign_predictions, True, "predictions.safetensors: 35 of 355 are right, the result says 320 of 355"),
    (shorter_metrics, True, "metrics.jsonl: steps are not numbered 1, 2, 3, ..."),
    (metrics_folder, False, "metrics.jsonl: cannot be read: Is a directory"),
    (damaged_record, False, "run.json: cannot be read"),
    (older_schema, True, f"result.json: not valid: schema_version: Input should be {SCHEMA_VERSION}"),
]


@pytest.mark.parametrize(("change", "sealed", "told"), CHANGES, ids=lambda value: getattr(value, "__name__", None))
def test_what_was_changed_is_a_failed_run_that_says_why(made, tmp_path, change, sealed, told):
    folder = tmp_path / "r"
    shutil.copytree(made, folder)
    run_dir = folder / "runs" / "seed-0" / "round-2" / "pt"
    change(run_dir)
    if sealed:
        seal(run_dir)
    runs, missing = find_runs(folder, Request.read(folder, "--report-only"))
    (failed,) = (run for run in runs if run.result is None)
    assert told in failed.record.failure and failed.run_dir == run_dir and len(runs) == 4 and not missing


def test_the_report_is_made_of_the_others(made, tmp_path):
    folder = tmp_path / "r"
    shutil.copytree(made, folder)
    command = (sys.executable, "compare.py", "--report-only", folder)
    run(*command, cwd=REPOSITORY)
    slightly_faster(folder / "runs" / "seed-0" / "round-2" / "pt")
    text = " ".join(run(*command, cwd=REPOSITORY, expect=1).stdout.split())
    tf, pt = read_csv(folder / "results.csv")
    assert (tf["status"], pt["status"], pt["num_rounds"]) == ("ok", "some failed", "1")
    assert "its files have been changed since the run ended" in text


def test_runs_of_other_code_are_reported(made, tmp_path):
    folder = tmp_path / "r"
    shutil.copytree(made, folder)
    run_dir = folder / "runs" / "seed-0" / "round-2" / "pt"
    change(run_dir / "result.json", git={"commit": "b" * 40, "dirty": False})
    seal(run_dir)
    text = run(sys.executable, "compare.py", "--report-only", folder, cwd=REPOSITORY).stdout
    said = f"warning: the code changed between runs: commits {'a' * 12} and {'b' * 12}"
    assert said in " ".join(text.split())


def test_options_are_those_of_the_runs_and_not_of_an_edited_request(made, tmp_path):
    folder = tmp_path / "r"
    shutil.copytree(made, folder)
    content = json.loads((folder / "comparison.json").read_text())
    content["config"] |= {"batch_size": 128}
    content["options"] |= {"batch_size": 128}
    (folder / "comparison.json").write_text(json.dumps(content))
    text = run(sys.executable, "compare.py", "--report-only", folder, cwd=REPOSITORY).stdout
    said = "warning: comparison.json has --batch-size 128, but the runs were trained with 64; it was changed since"
    assert said in " ".join(text.split())
    assert "batch_size&#34;: 64" in (folder / "report.html").read_text()
