"""compare.py as a person starts it, with made-up implementations that need no framework."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from conftest import copy_code, run

FAKES = Path(__file__).resolve().parent.parent / "fakes"
SHORT = ("--epochs", 2, "--train-size", 500, "--batch-size", 20)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The project's code with the made-up implementations beside the real ones."""
    folder = copy_code(tmp_path_factory.mktemp("project"))
    shutil.copytree(FAKES, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def compare(project, output, *implementations, expect=0, options=SHORT):
    """Runs compare.py; returns what it printed and the rows of results.csv."""
    command = (sys.executable, "compare.py", "--output-dir", output, "--implementations", *implementations, *options)
    done = run(*command, cwd=project, expect=expect)
    with open(output / "results.csv") as file:
        return done.stdout, list(csv.DictReader(file))


def test_two_runs_of_the_same_training_share_a_table(project, tmp_path):
    text, rows = compare(project, tmp_path / "r", "one", "two")
    assert [row["status"] for row in rows] == ["ok", "ok"] and {row["table"] for row in rows} == {"1"}
    assert float(rows[0]["ratio"]) == 1
    speeds = [float(row["images_per_second"]) for row in rows]
    assert float(rows[1]["ratio"]) == pytest.approx(speeds[1] / speeds[0])
    assert rows[0]["loss_difference_all_steps"] == "" and float(rows[1]["loss_difference_all_steps"]) == 0
    assert "cnn on digits: 500 training and 355 test images, 53,002 parameters" in text
    assert "batch 20, 2 epochs, 50 steps, 32-bit, seed 0" in text
    assert "one: done" in text and "two: epoch 2/2  accuracy 49.86%" in text
    lines = text.splitlines()
    table = lines[next(n for n, line in enumerate(lines) if line.startswith("cnn on digits")) : -1]
    assert len(table) > 8 and max(map(len, table)) <= 80


def test_the_same_table_is_written_in_three_forms(project, tmp_path):
    text, rows = compare(project, tmp_path / "r", "one", "two")
    stored = json.loads((tmp_path / "r" / "results.json").read_text())
    assert [row["implementation"] for row in stored["rows"]] == ["one", "two"]
    assert stored["results"]["two"]["test_count"] == 355 and "compare.py" in stored["command"]
    for row, other in zip(rows, stored["rows"], strict=True):
        assert {name: "" if value is None else str(value) for name, value in other.items()} == row
    page = (tmp_path / "r" / "results.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith("| two ")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    (shown,) = [line.split() for line in text.splitlines() if line.startswith("two ")]
    assert " ".join(cells) == " ".join(shown)


def test_a_different_training_gets_no_ratio_and_says_where_it_parts(project, tmp_path):
    text, rows = compare(project, tmp_path / "r", "one", "parted", "two", expect=1)
    assert [row["status"] for row in rows] == ["ok", "different training", "ok"]
    assert rows[1]["ratio"] == "" and float(rows[1]["loss_difference_first_steps"]) == pytest.approx(1e-3, rel=1e-6)
    assert "step 1 of 50" in rows[1]["note"] and "parted: different training" in text


def test_a_run_that_counted_other_test_examples_has_a_table_of_its_own(project, tmp_path):
    text, rows = compare(project, tmp_path / "r", "one", "fewer", "two", expect=1)
    assert [row["table"] for row in rows] == ["1", "2", "1"]
    assert "not in the same table as one: test_count: 355 and 354" in rows[1]["note"]
    assert text.count("cnn on digits") == 2 and "354 test images" in text


@pytest.mark.parametrize(
    ("name", "reason", "log"),
    [
        ("crash", "exit status 1", "the reason of the crash"),
        ("broken", "result.json: not valid", ""),
        ("scribble", "metrics.jsonl: not valid", ""),
    ],
)
def test_a_failure_is_a_row_that_says_so_and_the_others_still_run(project, tmp_path, name, reason, log):
    text, rows = compare(project, tmp_path / "r", name, "one", "two", expect=1)
    assert [row["status"] for row in rows] == ["failed", "ok", "ok"]
    assert reason in rows[0]["note"] and rows[0]["test_accuracy"] == ""
    assert f"{name}: failed" in text and log in text and str(tmp_path / "r" / name / "log.txt") in text
    assert float(rows[1]["ratio"]) == 1 and rows[2]["ratio"]  # the first row that finished is the reference


def test_nothing_but_failures_is_a_table_too(project, tmp_path):
    text, rows = compare(project, tmp_path / "r", "crash", expect=1)
    assert [row["status"] for row in rows] == ["failed"] and "no implementation has finished" in text


def wait_for(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return found


def gone(pids):
    return all(not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE for pid in pids)


def test_a_run_past_its_timeout_is_ended_with_its_children(project, tmp_path):
    started = time.monotonic()
    text, rows = compare(project, tmp_path / "r", "hang", "one", expect=1, options=(*SHORT, "--timeout", 8))
    assert time.monotonic() - started < 40
    assert [row["status"] for row in rows] == ["failed", "ok"]
    assert "still running after --timeout 8 seconds" in rows[0]["note"]
    pids = list(map(int, (tmp_path / "r" / "hang" / "pids").read_text().split()))
    assert len(pids) == 2 and gone(pids)


@pytest.mark.parametrize("numbers", [[signal.SIGINT], [signal.SIGTERM], [signal.SIGHUP], [signal.SIGINT] * 3], ids=str)
def test_an_interrupt_ends_the_children_and_keeps_what_is_finished(project, tmp_path, numbers):
    command = [sys.executable, "compare.py", "--output-dir", tmp_path / "r", "--implementations", "one", "hang", "two"]
    process = subprocess.Popen(
        [*map(str, command), *map(str, SHORT)],
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "80"},
    )
    pids = (
        wait_for((tmp_path / "r" / "hang" / "pids").exists) and (tmp_path / "r" / "hang" / "pids").read_text().split()
    )
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.5)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert gone(map(int, pids))
    assert "without a result: hang, two" in err and str(tmp_path / "r") in err and "Traceback" not in err
    assert "one " in out and not (tmp_path / "r" / "two").exists()
    with open(tmp_path / "r" / "results.csv") as file:
        assert [row["implementation"] for row in csv.DictReader(file)] == ["one"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--batch-size", "0"), "--batch-size 0: should be greater than 0"),
        (("--implementations", "tf", "jax"), "--implementations jax: not one of"),
        (("--implementations", "tf", "tf"), "--implementations tf: named twice"),
        (("--timeout", "0"), "--timeout 0: should be greater than 0"),
        (("--python", "tf"), "--python tf: should be NAME=PATH"),
        (("--python", "tf=/none"), "--python tf=/none: no program at /none"),
        (("--model", "lenet"), "--model lenet: needs images of at least 16 x 16, these are 8 x 8"),
        (("--run-dir", "x"), "unknown option --run-dir x"),
        (("--output-dir", "common"), "--output-dir common: is not empty"),
        (("--output-dir", "compare.py"), "--output-dir compare.py: File exists"),
        (("--output-dir", "compare.py/x"), "--output-dir compare.py/x: Not a directory"),
    ],
)
def test_mistakes_end_in_one_line_before_anything_is_started(project, options, message):
    done = run(sys.executable, "compare.py", *options, cwd=project, expect=2)
    assert done.stdout == "" and done.stderr.startswith(f"compare.py: error: {message}")
    assert len(done.stderr.splitlines()) == 1
    assert not (project / "results").exists()


def test_every_implementation_can_have_its_own_interpreter(project, tmp_path):
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\necho mine > "{tmp_path}/used"\nexec "{sys.executable}" "$@"\n')
    other.chmod(0o755)
    compare(project, tmp_path / "r", "one", options=(*SHORT, "--python", f"one={other}"))
    assert (tmp_path / "used").read_text() == "mine\n"


def test_an_interpreter_that_cannot_be_run_is_a_failed_row(project, tmp_path):
    (tmp_path / "python").write_bytes(b"\x00 no program")
    (tmp_path / "python").chmod(0o755)
    options = (*SHORT, "--python", f"one={tmp_path}/python")
    text, rows = compare(project, tmp_path / "r", "one", "two", expect=1, options=options)
    assert [row["status"] for row in rows] == ["failed", "ok"] and "cannot be run" in rows[0]["note"]


@pytest.mark.parametrize(
    ("gpus", "accelerator", "devices"),
    [
        ({"one": "4", "two": "2"}, "gpu", 2),
        ({"one": "4"}, "cpu", 1),
        ({}, "cpu", 1),
    ],
)
def test_all_run_on_the_same_kind_of_device(project, tmp_path, gpus, accelerator, devices):
    """On a machine whose nvidia-smi lists GPUs, some of which some implementations see."""
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho GPU 0: made up\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    environment = {f"FAKE_GPUS_{name}": number for name, number in gpus.items()}
    environment["PATH"] = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    command = (sys.executable, "compare.py", "--output-dir", tmp_path / "r", "--implementations", "one", "crash", "two")
    text = run(*command, *SHORT, cwd=project, expect=1, **environment).stdout
    stored = json.loads((tmp_path / "r" / "results.json").read_text())["results"]
    assert {(one["accelerator"], one["devices"]) for one in stored.values()} == {(accelerator, devices)}
    assert ("on the CPU, since there is no GPU for" in text) == (accelerator == "cpu")
    assert [row["table"] for row in json.loads((tmp_path / "r" / "results.json").read_text())["rows"]] == [1, 0, 1]


@pytest.mark.parametrize("folder", ["with space", "ünïcode", "[red]", "[/x] :smile:"])
def test_folders_may_have_any_name_and_be_relative(project, tmp_path, folder):
    command = (sys.executable, project / "compare.py", "--implementations", "one", "--output-dir", folder, *SHORT)
    text = run(*command, cwd=tmp_path).stdout
    assert (tmp_path / folder / "one" / "result.json").exists()
    assert text.splitlines()[-1] == f"results: {folder}"
    assert (tmp_path / folder / "one" / "log.txt").read_text().endswith(f"results: {tmp_path / folder / 'one'}\n")
