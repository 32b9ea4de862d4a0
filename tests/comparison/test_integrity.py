"""Damaged, cut off or foreign files of a run make it a failed run; the others are shown."""

import json
import os
import shutil
import sys

import numpy as np
import pytest
from conftest import REPOSITORY, read_csv, run
from made_up import comparison

from common.platform.errors import UserError
from common.record.predictions import Predictions
from common.record.results import SCHEMA_VERSION
from comparison.measure.summary import find_runs
from comparison.plan.request import Request, take
from comparison.run.integrity import files_sha256
from comparison.run.program import RECORD_FILE, Record


@pytest.fixture
def made(tmp_path):
    """A comparison as compare.py writes it, with the digests of its runs."""
    comparison(tmp_path / "r", repeats=2, implementations=["tf", "pt"], verify="never")
    return tmp_path / "r"


def seal(run_dir):
    """Makes the digest match a run's files, as if the run had written them so."""
    record = Record.model_validate_json((run_dir / RECORD_FILE).read_text())
    record = record.model_copy(update={"files_sha256": files_sha256(run_dir)})
    (run_dir / RECORD_FILE).write_text(record.model_dump_json())


def change(path, **values):
    content = json.loads(path.read_text())
    assert values.keys() <= content.keys()
    path.write_text(json.dumps({**content, **values}))


def faster(run):
    change(run / "result.json", images_per_second=1010.0)


def without_digest(run):
    change(run / RECORD_FILE, files_sha256=None)


def other_round(run):
    shutil.rmtree(run)
    shutil.copytree(run.parent.parent / "round-1" / "pt", run)


def foreign_predictions(run):
    labels = Predictions.read(run).labels.astype(np.int64)
    Predictions.make(np.eye(10)[0 * labels], labels, np.zeros((len(labels), 8, 8, 1), np.uint8)).write(run)


def missing_step(run):
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:5] + lines[6:]))


def missing_end(run):
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(line for line in lines if '"step": 20,' not in line))


def older_schema(run):
    change(run / "result.json", schema_version=SCHEMA_VERSION - 1)


def cut_off(run):
    (run / "result.json").write_bytes((run / "result.json").read_bytes()[:100])


def missing_predictions(run):
    (run / "predictions.safetensors").unlink()


def damaged_record(run):
    (run / RECORD_FILE).write_bytes(b"\xff\xfe")


# What happened to a run's files; whether the run itself has written them so; message.
CHANGES = [
    (faster, False, "its files have been changed since the run ended"),
    (without_digest, False, "its files have been changed since the run ended"),
    (other_round, False, "run.json: is of another run: round 1, should be 2"),
    (foreign_predictions, True, "predictions.safetensors: 35 of 355 are right, the result says 320 of 355"),
    (missing_step, True, "metrics.jsonl: steps are not numbered 1, 2, 3, ..."),
    (missing_end, True, "metrics.jsonl: 19 steps, the result says 20"),
    (older_schema, True, f"result.json: not valid: schema_version: Input should be {SCHEMA_VERSION}"),
    (cut_off, False, "result.json: not valid: "),
    (missing_predictions, False, "predictions.safetensors: cannot be read: No such file"),
    (damaged_record, False, "run.json: cannot be read"),
]


@pytest.mark.parametrize(("change", "sealed", "told"), CHANGES, ids=lambda value: getattr(value, "__name__", None))
def test_damaged_files_are_a_failed_run_that_says_why(made, change, sealed, told):
    run_dir = made / "runs" / "seed-0" / "round-2" / "pt"
    change(run_dir)
    if sealed:
        seal(run_dir)
    runs, missing = find_runs(made, Request.read(made, "--report-only"))
    (failed,) = (run for run in runs if run.result is None)
    assert told in failed.record.failure and failed.run_dir == run_dir and len(runs) == 4 and not missing


def test_the_report_is_made_of_the_others(made):
    faster(made / "runs" / "seed-0" / "round-2" / "pt")
    done = run(sys.executable, "compare.py", "--report-only", made, cwd=REPOSITORY, expect=1)
    tf, pt = read_csv(made / "results.csv")
    assert (tf["status"], pt["status"], pt["num_rounds"]) == ("ok", "some failed", "1")
    assert "its files have been changed since the run ended" in " ".join(done.stdout.split())


def test_runs_of_other_code_are_reported(made):
    run_dir = made / "runs" / "seed-0" / "round-2" / "pt"
    change(run_dir / "result.json", git={"commit": "b" * 40, "dirty": False})
    seal(run_dir)
    text = run(sys.executable, "compare.py", "--report-only", made, cwd=REPOSITORY).stdout
    said = f"warning: the code changed between runs: commits {'a' * 12} and {'b' * 12}"
    assert said in " ".join(text.split())


def test_a_damaged_request_is_one_line(made):
    (made / "comparison.json").write_text("{")
    with pytest.raises(UserError, match=r"comparison.json: not valid: "):
        Request.read(made, "--report-only")


def test_a_folder_has_one_program_at_work(made):
    take(made, "--report-only")
    with pytest.raises(UserError, match=rf"another compare.py is at work there \(process {os.getpid()} on "):
        take(made, "--report-only")
