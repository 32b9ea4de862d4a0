"""No finished run is lost if a process is killed, a disk is full, a folder is deleted, or two compare.py share one."""

import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest
from conftest import (
    CPU,
    ONE_ROUND,
    REPOSITORY,
    gone,
    read_csv,
    remount,
    run,
    start_process,
    steps_taken,
    train,
    wait_for,
)
from test_compare import SHORT, run_dir

from common.record.results import read_result, read_step_losses


def begin(project, output, *implementations, **environment):
    command = [sys.executable, "compare.py", "--output-dir", output, "--implementations", *implementations]
    return subprocess.Popen(
        [*map(str, command), *map(str, SHORT), "--verify", "never"],
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def pids_of(path):
    return list(map(int, (wait_for(path.exists) and path.read_text()).split()))


@pytest.mark.slow
def test_the_children_of_one_that_is_killed_end_too(project, tmp_path):
    """Otherwise they would train beside the runs of the resumed comparison, and write into the same folders."""
    with begin(project, tmp_path / "r", "one", "hang") as process:
        pids = pids_of(run_dir(tmp_path / "r", "hang") / "pids")
        process.kill()
    wait_for(lambda: gone(pids), seconds=5)
    assert (run_dir(tmp_path / "r", "one") / "run.json").exists()
    run(sys.executable, "compare.py", "--resume", tmp_path / "r", "--timeout", 4, cwd=project, expect=1)
    rows = read_csv(tmp_path / "r" / "results.csv")
    assert [(row["implementation"], row["status"]) for row in rows] == [("one", "ok"), ("hang", "failed")]


@pytest.mark.slow
def test_a_folder_belongs_to_one_at_a_time(project, tmp_path):
    output = tmp_path / "r"
    with begin(project, output, "two", "hang") as process:
        pids = pids_of(run_dir(output, "hang") / "pids")
        before = sorted(path.name for path in run_dir(output, "hang").parent.iterdir())
        for option in ("--resume", "--report-only"):
            done = run(sys.executable, "compare.py", option, output, cwd=project, expect=2)
            (line,) = done.stderr.splitlines()
            assert line.startswith(f"compare.py: error: {option} {output}: another compare.py is at work there")
            assert f"(process {process.pid} on " in line
        assert sorted(path.name for path in run_dir(output, "hang").parent.iterdir()) == before
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert gone(pids)
    run(sys.executable, "compare.py", "--report-only", output, cwd=project, expect=1)


@pytest.mark.slow
def test_two_at_once_in_folders_of_their_own_do_not_meet(project, tmp_path):
    """They share the cache, which stores proofs and findings about the processor."""
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "compare.py", "--implementations", "one", "two", *map(str, SHORT), "--output-dir"]
    started = [
        subprocess.Popen(
            [*command, str(tmp_path / name)],
            cwd=project,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **cache},
        )
        for name in ("a", "b")
    ]
    for process, name in zip(started, ("a", "b"), strict=True):
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, out + err
        rows = read_csv(tmp_path / name / "results.csv")
        assert [(row["implementation"], row["status"]) for row in rows] == [("one", "ok"), ("two", "ok")]
    done = run(*command, tmp_path / "c", cwd=project, **cache)
    assert "checking that all rows are the same" not in done.stdout, "what both have kept can be read"


def test_what_a_launcher_has_set_is_not_for_the_runs(project, tmp_path):
    command = (sys.executable, "compare.py", "--output-dir", tmp_path / "r", "--implementations", "one", *SHORT)
    done = run(*command, cwd=project, expect=2, LOCAL_RANK="1")
    assert done.stderr.startswith("compare.py: error: LOCAL_RANK 1: ")


@pytest.mark.quick("330000-1")
@pytest.mark.parametrize(("size", "finished"), [(100_000, 0), (330_000, 1), (700_000, 2)])
def test_without_space_there_is_a_line_and_what_is_finished_is_shown(project, small_disk, size, finished):
    """The disk fills up in the first run's files, in the second run's files, or in the report."""
    output = small_disk(size) / "r"
    command = (sys.executable, "compare.py", "--output-dir", output, "--implementations", "one", "two", *SHORT)
    done = run(*command, "--verify", "never", cwd=project, expect=1)
    assert "Traceback" not in done.stdout + done.stderr
    assert "No space left on device" in done.stdout + done.stderr
    assert re.findall(r"^(\w+) +[\d.]+% ", done.stdout, re.MULTILINE) == ["one", "two"][:finished], done.stdout
    assert f"python compare.py --{'report-only' if finished == 2 else 'resume'} {output} " in done.stderr
    remount(output.parent, "size=100M")
    run(sys.executable, "compare.py", "--resume", output, cwd=project)
    assert [row["status"] for row in read_csv(output / "results.csv")] == ["ok", "ok"]
    assert (output / "report.html").exists() and not list(output.glob("**/.*.????????????????"))


def test_ctrl_c_at_once_ends_it_without_a_stack_trace(project, tmp_path):
    command = [sys.executable, "compare.py", "--output-dir", str(tmp_path / "r"), "--implementations", "hang"]
    with subprocess.Popen(command, cwd=project, stderr=subprocess.PIPE, text=True) as process:
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode in (130, -signal.SIGINT), err
    # A stack trace from before quiet_start.py has run is the interpreter's own.
    assert "Traceback" not in err or str(project) not in err or "quiet_start.py" in err, err


@pytest.mark.quick("{'COLUMNS': '0'}")
@pytest.mark.parametrize(
    "environment", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"COLUMNS": "0"}], ids=str
)
def test_whatever_the_terminal_can_show_it_is_shown(project, tmp_path, environment):
    command = (sys.executable, project / "compare.py", "--implementations", "one", *SHORT, "--output-dir")
    done = run(*command, tmp_path / "r", cwd=project, **environment)
    assert re.search(r"^one [| ]*[\d.]+%", done.stdout, re.MULTILINE), done.stdout
    if "LC_ALL" in environment:
        folder = tmp_path / "ünïcode"
        folder.mkdir()
        for arguments, cwd in ((folder, project), ("r", folder)):
            (line,) = run(*command, arguments, cwd=cwd, expect=2, **environment).stderr.splitlines()
            assert line.startswith("compare.py: error: '") and "can't be read in this system's encoding" in line


LONG = ("--precision", 64, "--train-size", 418, "--batch-size", 16, "--epochs", 60)


@pytest.mark.slow
def test_a_run_that_was_cut_off_goes_on_from_its_checkpoint(tmp_path):
    """Its losses are those of an uninterrupted run. Its accuracy counts, its times do not."""
    output, options = tmp_path / "r", (*LONG, *CPU, "--mode", "plain", "--checkpoint-every", 100)
    command = [sys.executable, "compare.py", "--output-dir", output, "--implementations", "pt", *options, *ONE_ROUND]
    command = [*map(str, command), "--verify", "never"]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: steps_taken(run_dir(output, "pt")) > 250, 60)
        process.kill()
    done = run(sys.executable, "compare.py", "--resume", output)
    result = read_result(run_dir(output, "pt"))
    assert result.resumed_from >= 200 and result.resumed_from % 100 == 0
    assert result.config.resume.is_relative_to(run_dir(output, "pt").with_name("pt.unfinished-1"))
    assert "PyTorch: 1 of 1 runs continued from a checkpoint; their times are left out" in done.stdout
    (row,) = read_csv(output / "results.csv")
    assert (row["status"], row["images_per_second"], row["train_seconds"]) == ("ok", "", "")
    assert read_step_losses(run_dir(output, "pt")) == read_step_losses(train("pt", tmp_path / "whole", *LONG))


@pytest.mark.slow
def test_without_space_for_a_checkpoint_there_is_a_line(tmp_path, small_disk):
    folder = small_disk(700_000) / "r"
    command = (sys.executable, "-m", "pt_impl", *CPU, *LONG, "--checkpoint-every", 10, "--run-dir", folder)
    done = run(*command, expect=1)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"python -m pt_impl: error: {folder / 'checkpoints'}") and "No space left on device" in line
    assert len(list((folder / "checkpoints").iterdir())) <= 1, "half a checkpoint is left"
    remount(folder.parent, "size=100M")
    run(*command, "--resume", "auto")
    assert read_step_losses(folder) == read_step_losses(train("pt", tmp_path / "whole", *LONG))


PHASES = {
    "proof": lambda output: list(output.glob("proofs/**/config.json")),
    "runs": lambda output: list(output.glob("runs/**/metrics.jsonl")),
    "report": lambda output: (output / "results.csv").exists(),
}


@pytest.mark.quick("runs")
@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_in_each_phase(project, tmp_path, phase):
    """What is finished stays, no process is left, and `--resume` makes the rest."""
    output = tmp_path / "r"
    command = [sys.executable, "compare.py", "--implementations", "one", "two", *map(str, SHORT)]
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}  # without a proof that is known already
    process = start_process((*command, "--output-dir", output), project, stdout=subprocess.DEVNULL, **cache)
    wait_for(lambda: PHASES[phase](output), 120)
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    os.killpg(process.pid, signal.SIGINT)
    err = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "Traceback" not in err, err
    assert not psutil.wait_procs(family, timeout=10)[1]
    run(sys.executable, "compare.py", "--resume", output, cwd=project)
    rows = read_csv(output / "results.csv")
    assert [(row["implementation"], row["status"]) for row in rows] == [("one", "ok"), ("two", "ok")]
