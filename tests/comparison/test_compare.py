"""compare.py as a user starts it, with made-up implementations that need no framework."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import ONE_ROUND, gone, read_csv, run, wait_for

from common.data.arrays import write_arrays_info
from comparison.prove import prover

FEW_STEPS = ("--epochs", 2, "--train-size", 500, "--batch-size", 20)
SHORT = (*FEW_STEPS, "--repeats", 1, "--mode", "plain")


def run_dir(output, name, number=1):
    return output / "runs" / "seed-0" / f"round-{number}" / name


def compare(project, output, *implementations, expect=0, options=SHORT):
    """Runs compare.py; returns what it printed and the rows of results.csv."""
    command = (sys.executable, "compare.py", "--output-dir", output, "--implementations", *implementations, *options)
    done = run(*command, cwd=project, expect=expect)
    return done.stdout, read_csv(output / "results.csv")


@pytest.mark.slow
def test_two_runs_of_the_same_training_share_a_table(project, tmp_path):
    text, rows = compare(project, tmp_path / "r", "one", "two")
    assert [row["status"] for row in rows] == ["ok", "ok"] and {row["table"] for row in rows} == {"1"}
    assert float(rows[0]["ratio"]) == 1
    assert float(rows[1]["ratio_low"]) < float(rows[1]["ratio"]) < float(rows[1]["ratio_high"])
    assert text.splitlines()[-2].endswith("; for these processes only, others may differ)")  # there is one round only
    assert int(rows[0]["num_turns"]) == int(rows[1]["num_turns"]) >= 10
    assert rows[0]["loss_difference_all_steps"] == "" and float(rows[1]["loss_difference_all_steps"]) == 0
    assert "cnn on digits: 500 training and 355 test images, 53,002 parameters" in text
    assert "batch 20, 2 epochs, 50 steps, seed 0\n" in text and "mode plain: 32-bit\n" in text
    assert "one: done" in text and "two: epoch 2/2  accuracy 49.86%" in text
    lines = text.splitlines()
    start, end = (next(n for n, line in enumerate(lines) if line.startswith(w)) for w in ("cnn on digits", "warning"))
    assert end - start > 12 and max(map(len, lines[start:end])) <= 80


def test_the_same_table_is_written_in_three_forms(project, tmp_path):
    text, rows = compare(project, tmp_path / "r", "one", "two")
    stored = json.loads((tmp_path / "r" / "results.json").read_text())
    assert [row["implementation"] for row in stored["rows"]] == ["one", "two"]
    assert [run["result"]["test_count"] for run in stored["runs"]] == [355, 355] and "compare.py" in stored["command"]
    for row, nested in zip(rows, stored["rows"], strict=True):
        other = {name: value for name, value in nested.items() if not isinstance(value, dict)}
        other |= {name: value for part in nested.values() if isinstance(part, dict) for name, value in part.items()}
        other |= {"variant": "", "run_dirs": " ".join(other["run_dirs"])}
        assert {name: "" if value is None else str(value) for name, value in other.items()} == row
    page = (tmp_path / "r" / "results.md").read_text()
    written = [line for line in page.splitlines() if line.startswith("| two ")]
    (shown,) = (line.split() for line in text.splitlines() if re.match("two (?!and|trained)", line))
    assert written[0].replace("|", " ").split() == shown and len(written) > 2
    runs = read_csv(tmp_path / "r" / "runs.csv")
    assert [run["implementation"] for run in runs] == ["one", "two"] and float(runs[0]["imports_seconds"]) > 0


def test_a_different_training_gets_no_ratio_and_says_where_it_parts(project, tmp_path):
    text, rows = compare(project, tmp_path / "r", "one", "parted", "two", expect=1)
    assert [row["status"] for row in rows] == ["ok", "different training", "ok"]
    assert rows[1]["ratio"] == "" and float(rows[1]["loss_difference_first_steps"]) == pytest.approx(1e-3, rel=1e-6)
    assert rows[1]["same_training"] == "False" and rows[0]["same_training"] == ""
    assert "step 1 of 20" in rows[1]["note"] and "parted: different training" in text


@pytest.mark.slow
def test_a_run_that_counted_other_test_examples_has_a_table_of_its_own(project, tmp_path):
    text, rows = compare(project, tmp_path / "r", "one", "fewer", "two", expect=1)
    assert [(row["implementation"], row["table"]) for row in rows] == [("one", "1"), ("two", "1"), ("fewer", "2")]
    assert "not in the same table as the runs above: test_count: 355 and 354" in rows[2]["note"]
    assert text.count("cnn on digits") == 2 and "354 test images" in text


@pytest.mark.quick("crash")
@pytest.mark.parametrize(
    ("name", "reason", "log"),
    [
        ("crash", "exit status 1", "the reason of the crash"),
        ("broken", "result.json: not valid", ""),
        ("scribble", "metrics.jsonl: not valid", ""),
        ("alias", "alias_impl calls itself 'one'; it should give its Recorder the name 'alias'", ""),
        (
            "illegal",
            "ended by signal 4 (SIGILL: an instruction that the processor does not execute",
            "about to be killed",
        ),
    ],
)
def test_a_failure_is_a_row_that_says_so_and_the_others_still_run(project, tmp_path, name, reason, log):
    text, rows = compare(project, tmp_path / "r", name, "one", "two", expect=1)
    assert [row["status"] for row in rows] == ["failed", "ok", "ok"]
    assert reason in rows[0]["note"] and rows[0]["test_accuracy"] == ""
    assert f"{name}: failed" in text and log in text and str(run_dir(tmp_path / "r", name) / "log.txt") in text
    assert float(rows[1]["ratio"]) == 1 and rows[2]["ratio_min"]  # the first row that finished is the reference


def test_nothing_but_failures_is_a_table_too(project, tmp_path):
    text, rows = compare(project, tmp_path / "r", "crash", expect=1)
    assert [row["status"] for row in rows] == ["failed"] and "no implementation has finished" in text


@pytest.mark.slow
def test_a_run_past_its_timeout_is_ended_with_its_children(project, tmp_path):
    started = time.monotonic()
    options = (*SHORT, "--timeout", 8, "--verify", "never")
    text, rows = compare(project, tmp_path / "r", "hang", "one", expect=1, options=options)
    assert time.monotonic() - started < 40
    assert [row["status"] for row in rows] == ["failed", "ok"]
    assert "still running after --timeout 8 seconds" in rows[0]["note"]
    pids = list(map(int, (run_dir(tmp_path / "r", "hang") / "pids").read_text().split()))
    assert len(pids) == 2 and gone(pids)


@pytest.mark.quick("[<Signals.SIGINT: 2>]")
@pytest.mark.parametrize(
    "numbers",
    [[signal.SIGINT], [signal.SIGTERM], pytest.param([signal.SIGHUP], marks=pytest.mark.slow), [signal.SIGINT] * 3],
    ids=str,
)
def test_an_interrupt_ends_the_children_and_keeps_what_is_finished(project, tmp_path, numbers):
    command = [sys.executable, "compare.py", "--output-dir", tmp_path / "r", "--implementations", "one", "hang", "two"]
    process = subprocess.Popen(
        [*map(str, command), *map(str, SHORT), "--verify", "never"],
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "80"},
    )
    pids = (
        wait_for((run_dir(tmp_path / "r", "hang") / "pids").exists)
        and (run_dir(tmp_path / "r", "hang") / "pids").read_text().split()
    )
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.5)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert gone(map(int, pids))
    assert "interrupted; no result yet: runs/seed-0/round-1/hang and 1 more" in err and "Traceback" not in err
    assert f"python compare.py --resume {tmp_path / 'r'} makes the rest" in err
    assert "one " in out and (tmp_path / "r" / "report.html").exists()
    assert not (run_dir(tmp_path / "r", "two") / "result.json").exists()  # it still waits to be let go
    assert [row["implementation"] for row in read_csv(tmp_path / "r" / "results.csv")] == ["one"]


@pytest.mark.slow
def test_an_interrupt_of_the_proof_ends_its_children_and_leaves_nothing_half_done(project, tmp_path):
    options = ("--implementations", "one", "hang", *SHORT)
    command = [sys.executable, "compare.py", "--output-dir", tmp_path / "r", *options]
    process = subprocess.Popen(list(map(str, command)), cwd=project, stderr=subprocess.PIPE, text=True)
    told = tmp_path / "r" / "proofs" / "hang" / "pids"
    pids = wait_for(told.exists) and told.read_text().split()
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=30)[1]
    assert process.returncode == 130 and gone(map(int, pids))
    assert "interrupted; no result yet: runs/seed-0/round-1/one and 1 more" in err and "Traceback" not in err
    assert not (told.parent / "proof.json").exists()


@pytest.mark.slow
def test_a_proof_is_kept_and_not_made_again_until_something_changes(project, tmp_path):
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    started = []

    def prove(name, *options):
        command = (sys.executable, "compare.py", "--output-dir", tmp_path / name, "--implementations", "one", "two")
        text = run(*command, *SHORT, *options, cwd=project, **cache).stdout
        started.append(
            "checking that all rows are the same training, by their first steps in 64-bit precision: one, two\n" in text
        )
        files = {path.name for path in (tmp_path / name / "proofs" / "one").iterdir()}
        assert {"proof.json", "result.json", "metrics.jsonl", "log.txt"} <= files
        return text

    prove("first")
    again = prove("again")
    prove("other", "--learning-rate", 0.01)
    assert (
        started == [True, False, True]
        and "yes, proved in 64-bit runs: losses of the same step differ by at most 0" in again
    )
    source = project / "one_impl" / "__main__.py"
    code = source.read_text()
    source.write_text(code + "# changed\n")
    try:
        prove("changed")
    finally:
        source.write_text(code)
    never = run(
        *(sys.executable, "compare.py", "--output-dir", tmp_path / "never", "--implementations", "one", "two"),
        *(*SHORT, "--verify", "never"),
        cwd=project,
        **cache,
    ).stdout
    assert (
        started == [True, False, True, True] and "checking that all rows" not in never and "(--verify never)" in never
    )


@pytest.mark.quick("options0", "options3", "options7", "options10", "options23")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--batch-size", "0"), "--batch-size 0: should be greater than 0"),
        (("--implementations", "tf", "mxnet"), "--implementations mxnet: not one of"),
        (
            ("--implementations", "own.py"),
            "--implementations own.py: is no name; an implementation of your own is a folder",
        ),
        (("--implementations", "tf", "tf"), "--implementations tf: named twice"),
        (("--timeout", "0"), "--timeout 0: should be greater than 0"),
        (("--python", "tf"), "--python tf: should be NAME=PATH"),
        (("--python", "tf=/none"), "--python tf=/none: no program at /none"),
        (("--model", "lenet"), "--model lenet: needs images of at least 16 x 16, these are 8 x 8"),
        (("--run-dir", "x"), "unknown option --run-dir x"),
        (("--output-dir", "common"), "--output-dir common: is not empty"),
        (("--output-dir", "compare.py"), "--output-dir compare.py: File exists"),
        (("--output-dir", "compare.py/x"), "--output-dir compare.py/x: Not a directory"),
        (("--repeats", "0"), "--repeats 0: should be greater than 0"),
        (("--seeds", "1", "1"), "--seeds 1: named twice"),
        (("--ratio-within", "0.01%"), "--repeats 3: with --ratio-within, 3 rounds are run in any case"),
        (("--scaling", "weak"), "--scaling weak: needs --sweep devices=N,N or num-nodes=N,N"),
        (("--python", "one=python3", "one=python"), "--python one=python3: one is named twice"),
        (("--sweep", "=3"), "--sweep =3: should be OPTION=VALUE,VALUE,..."),
        (("--sweep", "stages=cpu"), "--sweep stages=cpu: --stages cannot be swept"),
        (("--sweep", "optimizer=adam", "--momentum", "0.5"), "--sweep optimizer=adam: --momentum 0.5: needs"),
        (("--sweep", "colour=red"), "--sweep colour=red: --colour cannot be swept"),
        (("--sweep", "model=cnn,lenet"), "--model lenet: needs images of at least 16 x 16"),
        (("--num-nodes", "2"), "--num-nodes 2: needs a Slurm job with so many nodes: sbatch --nodes=2 launch/slurm/"),
        (("--sweep", "momentum=0", "--sweep", "seed=1"), "--sweep: given twice; list all its values after one"),
        (
            ("--sweep-learning-rate", "1e-46"),
            "--sweep-learning-rate 1e-46: should be 'keep' or 'linear' or counts as 0 in the 32-bit floats used",
        ),
        (("--sweep-learning-rate", "tune"), "--sweep-learning-rate tune: should be 'keep' or 'linear' or"),
        (("--target-accuracy", "95"), "--target-accuracy 95: should be less than or equal to 1"),
        (("--resume", "nowhere"), "--resume nowhere: holds no comparison"),
        (("--report-only", "common"), "--report-only common: holds no comparison"),
        (("--resume", "a", "--output-dir", "b"), "--output-dir and --resume: give only one of them"),
    ],
)
def test_mistakes_end_in_one_line_before_anything_is_started(project, options, message):
    done = run(sys.executable, "compare.py", *options, cwd=project, expect=2)
    assert done.stdout == "" and done.stderr.startswith(f"compare.py: error: {message}")
    assert len(done.stderr.splitlines()) == 1
    assert not (project / "results").exists()


def test_an_interpreter_that_hangs_does_not_stop_the_proofs(tmp_path, monkeypatch):
    hanging = tmp_path / "python"
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(prover, "VERSIONS_SECONDS", 0.1)
    assert prover._versions(str(hanging)) == ""


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpus", "accelerator", "devices"),
    [
        ({"one": "4", "two": "2"}, "gpu", 2),
        ({"one": "4"}, "cpu", 1),
        ({}, "cpu", 1),
    ],
)
def test_all_run_on_the_same_kind_of_device(project, tmp_path, gpus, accelerator, devices):
    """On a machine whose nvidia-smi lists GPUs, of which each implementation may see several or none."""
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho GPU 0: made up\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    environment = {f"FAKE_GPUS_{name}": number for name, number in gpus.items()}
    environment["PATH"] = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    command = (sys.executable, "compare.py", "--output-dir", tmp_path / "r", "--implementations", "one", "crash", "two")
    text = run(*command, *SHORT, cwd=project, expect=1, **environment).stdout
    stored = json.loads((tmp_path / "r" / "results.json").read_text())["runs"]
    results = [run["result"] for run in stored if run["result"]]
    assert {(result["accelerator"], result["devices"]) for result in results} == {(accelerator, devices)}
    warning = "all rows are trained on the CPU: "
    assert (f"warning: {warning}" in text) == (accelerator == "cpu")
    warned = json.loads((tmp_path / "r" / "comparison.json").read_text())["warnings"]
    assert [line.startswith(warning) for line in warned] == [True] * (accelerator == "cpu")
    report = (tmp_path / "r" / "report.html").read_text()
    assert all(line.replace("'", "&#39;") in report for line in warned)
    assert [row["table"] for row in json.loads((tmp_path / "r" / "results.json").read_text())["rows"]] == [1, 0, 1]
    if accelerator == "cpu":
        command = (*command[:3], tmp_path / "s", *command[4:], "--accelerator", "gpu")
        done = run(*command, *SHORT, cwd=project, expect=2, **environment)
        blind = [f"{name} sees no GPU, although this machine has one: " for name in ("one", "two") if name not in gpus]
        assert done.stderr.startswith("compare.py: error: --accelerator gpu: ") and all(
            words in done.stderr for words in blind
        )


@pytest.mark.quick("[/x] :smile:")
@pytest.mark.parametrize("folder", ["with space", "ünïcode", "[red]", "[/x] :smile:"])
def test_folders_may_have_any_name_and_be_relative(project, tmp_path, folder):
    for name in ("common", "torch", "random"):  # modules of the folder that a user happens to be in are not run
        (tmp_path / f"{name}.py").write_text("1 / 0")
    command = (sys.executable, project / "compare.py", "--implementations", "one", "--output-dir", folder, *SHORT)
    text = run(*command, cwd=tmp_path).stdout
    there = run_dir(tmp_path / folder, "one")
    assert (there / "result.json").exists()
    assert text.splitlines()[-1] == f"results: {folder}; open {folder}/report.html in a browser"
    assert (there / "log.txt").read_text().endswith(f"results: {there}\n")


# --- Repeating, going on, looking again ---


def records(output):
    return {
        str(path.parent.relative_to(output / "runs")): json.loads(path.read_text())
        for path in (output / "runs").glob("**/run.json")
        if "unfinished" not in str(path)
    }


@pytest.mark.slow
def test_rounds_and_seeds_are_run_one_after_the_other_and_summed_up(project, tmp_path):
    options = (*FEW_STEPS, "--repeats", 2, "--seeds", 0, 1)
    text, rows = compare(project, tmp_path / "r", "one", "two", options=options)
    started = [line.partition(":")[0] for line in text.splitlines() if line.endswith(": starting")]
    assert started == [
        "one (seed 0, round 1)",
        "two (seed 0, round 1)",
        "one (seed 1, round 1)",
        "two (seed 1, round 1)",
        "one (seed 0, round 2)",
        "two (seed 0, round 2)",
        "one (seed 1, round 2)",
        "two (seed 1, round 2)",
    ]
    assert [(row["num_runs"], row["num_rounds"], row["num_seeds"]) for row in rows] == [("4", "4", "2")] * 2
    assert rows[1]["verdict"] in ("faster", "slower", "no difference shown") and rows[1]["ratio_low"]
    assert "seeds 0 1, 4 rounds" in text and len(records(tmp_path / "r")) == 8
    lines = text.splitlines()
    start, end = (next(n for n, line in enumerate(lines) if line.startswith(w)) for w in ("cnn on digits", "results:"))
    assert all(len(line) <= 80 for line in lines[start:end] if not line.startswith("warning"))


def test_what_was_interrupted_goes_on_where_it_was(project, tmp_path):
    output = tmp_path / "r"
    command = (sys.executable, "compare.py", "--implementations", "one", "two", "--repeats", 2, *FEW_STEPS)
    run(*command, "--output-dir", output, cwd=project)
    before = records(output)
    shutil.rmtree(output / "runs/seed-0/round-2/two")  # never started
    (output / "runs/seed-0/round-1/two/run.json").unlink()  # interrupted in the middle
    done = run(sys.executable, "compare.py", "--resume", output, cwd=project)
    assert [line for line in done.stdout.splitlines() if line.endswith("starting")] == [
        "two: starting",
        "two: starting",
    ]
    after = records(output)
    assert set(after) == set(before)
    again = {name for name in after if after[name] != before[name]}
    assert again == {"seed-0/round-1/two", "seed-0/round-2/two"}
    assert (output / "runs/seed-0/round-1/two.unfinished-1/result.json").exists()  # the unfinished run is kept
    assert len(json.loads((output / "comparison.json").read_text())["commands"]) == 2


@pytest.mark.slow
def test_it_is_resumed_from_another_folder_and_only_on_the_same_data(project, tmp_path):
    def write_arrays(folder, level):
        folder.mkdir(parents=True)
        for part in ("train", "test"):
            np.save(folder / f"{part}_images.npy", np.full((40, 8, 8, 1), level, np.uint8))
            np.save(folder / f"{part}_labels.npy", np.arange(40) % 2)
        write_arrays_info(folder, ["a", "b"])

    here, there = tmp_path / "here", tmp_path / "there"
    write_arrays(here / "set", 1)
    write_arrays(there / "set", 2)
    compare_py = (sys.executable, project / "compare.py")
    options = ("--implementations", "one", "--repeats", 1, "--mode", "plain", "--epochs", 1, "--batch-size", 20)
    run(*compare_py, "--output-dir", "r", "--dataset", "arrays", "--data-dir", "set", *options, cwd=here)
    before = json.loads((here / "r/runs/seed-0/round-1/one/result.json").read_text())
    run(*compare_py, "--resume", here / "r", "--repeats", 2, cwd=there)
    after = json.loads((here / "r/runs/seed-0/round-2/one/result.json").read_text())
    assert after["data_sha256"] == before["data_sha256"]
    shutil.rmtree(here / "set")
    shutil.copytree(there / "set", here / "set")
    failed = run(*compare_py, "--resume", here / "r", "--repeats", 3, cwd=there, expect=2)
    assert f"--data-dir {here / 'set'}: holds other data than when " in failed.stderr
    assert not (here / "r/runs/seed-0/round-3").exists()


@pytest.mark.slow
def test_rounds_that_others_disturb_are_made_again(project, tmp_path):
    options = (*FEW_STEPS, "--repeats", 3, "--seeds", 0, 1)
    text, rows = compare(project, tmp_path / "r", "one", "busy", options=options)
    seeds = {0: 4, 1: 5}  # seed 1 reaches the limit: half as many extra rounds, rounded up
    assert set(records(tmp_path / "r")) == {
        f"seed-{seed}/round-{number}/{name}"
        for seed, most in seeds.items()
        for number in range(1, most + 1)
        for name in ("one", "busy")
    }
    notice = "other programs use 50% of the cores"  # as soon as it is seen, and once
    assert text.count(notice) == 1 and text.index(notice) < text.index(": done")
    assert "other programs kept the machine busy: making 2 more rounds" in text
    assert [(row["num_runs"], row["num_rounds"], row["num_disturbed"]) for row in rows] == [("9", "3", "6")] * 2
    (line,) = [line for line in text.splitlines() if "disturbed" in line]
    assert line.startswith(
        "warning: 6 of 9 rounds were disturbed: other programs used up to 50% of the cores (busy, seed "
    )
    assert line.endswith("they are left out: speeds and ratios are from the other 3; extra rounds run instead: 3")
    again = run(sys.executable, "compare.py", "--resume", tmp_path / "r", cwd=project).stdout
    assert "starting" not in again
    shutil.rmtree(tmp_path / "r/runs/seed-1/round-5/busy")  # as if the comparison had been interrupted there
    done = run(sys.executable, "compare.py", "--report-only", tmp_path / "r", cwd=project, expect=1)
    assert "no result yet: runs/seed-1/round-5/busy" in done.stderr
    kept, rows = compare(project, tmp_path / "k", "one", "busy", options=(*options, "--disturbed", "keep"))
    assert "they still count" in kept and {row["num_rounds"] for row in rows} == {"6"}


@pytest.mark.slow
def test_a_failed_run_is_made_again_and_more_rounds_can_be_added(project, tmp_path):
    output = tmp_path / "r"
    command = (sys.executable, "compare.py", "--implementations", "one", "two", *SHORT)
    run(*command, "--output-dir", output, cwd=project)
    path = output / "runs/seed-0/round-1/two/run.json"
    path.write_text(path.read_text().replace('"failure": null', '"failure": "exit status 1"'))
    done = run(sys.executable, "compare.py", "--report-only", output, cwd=project, expect=1)
    assert "two: failed: exit status 1" in done.stdout
    run(sys.executable, "compare.py", "--resume", output, "--repeats", 2, cwd=project)
    assert set(records(output)) == {f"seed-0/round-{number}/{name}" for number in (1, 2) for name in ("one", "two")}
    done = run(sys.executable, "compare.py", "--resume", output, "--batch-size", 30, cwd=project, expect=2)
    assert done.stderr.startswith(f"compare.py: error: --batch-size 30: the comparison in {output} has 20; leave")
    for options, words in (
        (("--repeats", 1), f"--repeats 1: the comparison in {output} has 2 already"),
        (("--seeds", 1), f"--seeds 1: the comparison in {output} has 0; list these too, together with the new ones"),
        (("--implementations", "two"), f"--implementations two: the comparison in {output} has one two; list these"),
    ):
        done = run(sys.executable, "compare.py", "--resume", output, *options, cwd=project, expect=2)
        assert done.stderr.startswith(f"compare.py: error: {words}")
    done = run(sys.executable, "compare.py", "--report-only", output, "--repeats", 5, cwd=project, expect=2)
    assert done.stderr.startswith("compare.py: error: --repeats 5: the comparison in")


@pytest.mark.slow
def test_a_report_is_made_again_from_the_stored_runs_alone(project, tmp_path):
    output, moved = tmp_path / "r", tmp_path / "moved"
    compare(project, output, "one", "two", options=(*FEW_STEPS, "--repeats", 3))
    made = ("results.csv", "runs.csv", "results.md", "results.json", "results.schema.json", "report.html")
    before = {name: (output / name).read_text() for name in made}
    for name in made:
        (output / name).unlink()
    output.rename(moved)
    text = run(sys.executable, "compare.py", "--report-only", moved, cwd=project).stdout
    assert {name: (moved / name).read_text() for name in made} == before
    assert "starting" not in text
    text = run(sys.executable, "compare.py", "--report-only", moved, "--target-accuracy", 0.4, cwd=project).stdout
    assert "3 of 3" in text and "reached" in text


@pytest.mark.slow
def test_a_sweep_has_a_table_of_its_own(project, tmp_path):
    sweep = ("--sweep", "batch-size=10,20", "devices=1,2", "--scaling", "strong")
    options = ("--epochs", 2, "--train-size", 500, *ONE_ROUND, *sweep)
    text, rows = compare(project, tmp_path / "r", "one", "two", options=options)
    assert len(rows) == 8 and {row["variant"] for row in rows} == {
        f"batch-size={size},devices={devices},scaling=strong" for size in (10, 20) for devices in (1, 2)
    }
    assert "sweep of batch-size (10, 20) x devices (1, 2) x scaling (strong)\n" in text
    assert re.search("devices .* speed-up efficiency\n", text)
    assert all(len(line) <= 80 for line in text[text.index("cnn on digits") : text.index("warning")].splitlines())
    for name in ("sweep-speed-up", "sweep-efficiency", "sweep-final-accuracy", "lockstep-4"):
        assert (tmp_path / "r" / "figures" / f"{name}.png").exists()


@pytest.mark.slow
def test_a_learning_rate_is_tuned_before_it_is_used(project, tmp_path):
    sweep = ("--sweep", "batch-size=10,20", "--sweep-learning-rate", 0.1, 0.2)
    options = ("--epochs", 2, "--train-size", 500, *ONE_ROUND, *sweep)
    text, rows = compare(project, tmp_path / "r", "one", "two", options=options)
    assert text.count("rate search): starting") == 4 and len(rows) == 4
    assert {row["learning_rate"] for row in rows} == {"0.1"}  # all rates do equally well, so the first one is used
