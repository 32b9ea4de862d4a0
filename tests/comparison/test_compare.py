"""compare.py as a user starts it, with made-up implementations that need no framework; and what may go wrong."""

import json
import os
import re
import shutil
import signal
import sys
import time

import numpy as np
import psutil
import pytest
from conftest import CPU, compare, gone, program_of, read_csv, remount, run, start_process, steps_taken, train, wait_for

from common.data.arrays import write_arrays
from common.record.results import read_result, read_step_losses

FEW_STEPS = ("--epochs", 2, "--train-size", 500, "--batch-size", 20)
SHORT = (*FEW_STEPS, "--repeats", 1, "--mode", "plain")


def run_dir(output, name, number=1):
    return output / "runs" / "seed-0" / f"round-{number}" / name


def compare_fakes(project, output, *implementations, options=SHORT, **arguments):
    return compare(output, "--implementations", *implementations, *options, cwd=project, **arguments)


def reopen(project, word, output, *options, **arguments):
    """`compare.py --resume DIR` or `--report-only DIR`."""
    return run(sys.executable, "compare.py", word, output, *options, cwd=project, **arguments)


def statuses(rows):
    return {row["implementation"]: row["status"] for row in rows}


def test_rows_share_a_table_that_is_written_in_three_forms(project, tmp_path):
    text, rows = compare_fakes(project, tmp_path / "r", "one", "two")
    assert statuses(rows) == {"one": "ok", "two": "ok"} and {row["table"] for row in rows} == {"1"}
    assert float(rows[1]["ratio_low"]) < float(rows[1]["ratio"]) < float(rows[1]["ratio_high"])
    assert int(rows[0]["num_turns"]) == int(rows[1]["num_turns"]) >= 10
    lines = text.splitlines()
    assert lines[-2].endswith("; for these processes only, others may differ)")  # there is one round only
    stored = json.loads((tmp_path / "r" / "results.json").read_text())
    assert [run["test_count"] for run in stored["runs"]] == [355, 355]
    for row, nested in zip(rows, stored["rows"], strict=True):
        assert {name: "" if value is None else str(value) for name, value in nested.items()} == row
    (written, *_) = [line for line in (tmp_path / "r" / "results.md").read_text().splitlines() if "| two " in line]
    (shown,) = (line.split() for line in lines if re.match("two (?!and|trained)", line))
    assert written.replace("|", " ").split() == shown


def test_a_failure_is_a_row_that_says_so_and_the_others_still_run(project, tmp_path):
    names = ("crash", "one", "illegal", "alias", "dying", "two")
    text, rows = compare_fakes(project, tmp_path / "r", *names, expect=1)
    failed = dict.fromkeys(("crash", "illegal", "alias", "dying"), "failed")
    assert statuses(rows) == {**failed, "one": "ok", "two": "ok"}
    assert "exit status 1" in rows[0]["note"] and "the reason of the crash" in text
    assert "ended by signal 4 (SIGILL: an instruction that the processor does not execute" in rows[2]["note"]
    assert "alias_impl calls itself 'one'; it should give its Recorder the name 'alias'" in rows[3]["note"]
    assert "ended by signal 9" in rows[4]["note"] and int(rows[5]["num_turns"]) >= 10  # one dies in its turn
    assert "crash: failed" in text and str(run_dir(tmp_path / "r", "crash") / "log.txt") in text
    assert float(rows[1]["ratio"]) == 1  # the first row that finished is the reference


def test_every_implementation_can_have_its_own_interpreter(project, tmp_path):
    own, broken = tmp_path / "own", tmp_path / "broken"
    own.write_text(f'#!/bin/sh\necho mine > "{tmp_path}/used"\nexec "{sys.executable}" "$@"\n')
    broken.write_bytes(b"\x00 no program")
    for path in (own, broken):
        path.chmod(0o755)
    options = (*SHORT, "--python", f"one={own}", f"two={broken}")
    _, rows = compare_fakes(project, tmp_path / "r", "one", "two", expect=1, options=options)
    assert statuses(rows) == {"one": "ok", "two": "failed"} and "cannot be run" in rows[1]["note"]
    assert (tmp_path / "used").read_text() == "mine\n"


@pytest.mark.slow
@pytest.mark.parametrize(("gpus", "found"), [(("4", "2"), ("gpu", 2)), (("2", "0"), ("cpu", 1))])
def test_all_run_on_the_same_kind_of_device(project, tmp_path, gpus, found):
    """On a machine whose nvidia-smi lists GPUs, of which each implementation may see several or none."""
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho GPU 0: made up\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    seen = {"FAKE_GPUS_one": gpus[0], "FAKE_GPUS_two": gpus[1], "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    text, _ = compare_fakes(project, tmp_path / "r", "one", "two", **seen)
    results = [read_result(run_dir(tmp_path / "r", name)) for name in ("one", "two")]
    assert [(result.accelerator, result.devices) for result in results] == [found] * 2
    assert ("warning: all rows are trained on the CPU: " in text) == (found[0] == "cpu")


def test_folders_may_have_any_name_and_be_relative(project, tmp_path):
    for name in ("common", "torch", "random"):  # modules of the folder that a user happens to be in are not run
        (tmp_path / f"{name}.py").write_text("1 / 0")
    folder = "[/x] :smile: ünïcode"
    command = (sys.executable, project / "compare.py", "--implementations", "one", "--output-dir", folder, *SHORT)
    text = run(*command, cwd=tmp_path).stdout
    there = run_dir(tmp_path / folder, "one")
    assert text.splitlines()[-1] == f"results: {folder}; open {folder}/report.html in a browser"
    assert (there / "log.txt").read_text().endswith(f"results: {there}\n")


# --- Repeating, going on, looking again ---


def records(output):
    return {
        str(path.parent.relative_to(output / "runs")): json.loads(path.read_text())
        for path in (output / "runs").glob("**/run.json")
        if "unfinished" not in str(path)
    }


def test_what_was_interrupted_goes_on_where_it_was(project, tmp_path):
    output = tmp_path / "r"
    text, _ = compare_fakes(project, output, "one", "two", options=(*FEW_STEPS, "--repeats", 2, "--mode", "plain"))
    assert re.search(r"^runs: 2 of 4, 0:00:\d\d left$", text, re.MULTILINE), text
    before = records(output)
    shutil.rmtree(run_dir(output, "two", 2))  # never started
    (run_dir(output, "two") / "run.json").unlink()  # interrupted in the middle
    text = reopen(project, "--resume", output).stdout
    assert [line for line in text.splitlines() if line.endswith("starting")] == ["two: starting"] * 2
    after = records(output)
    assert {name for name in after if after[name] != before[name]} == {"seed-0/round-1/two", "seed-0/round-2/two"}
    assert (output / "runs/seed-0/round-1/two.unfinished-1/result.json").exists()  # the unfinished run is kept


@pytest.mark.slow
def test_a_failed_run_is_made_again_and_more_rounds_can_be_added(project, tmp_path):
    output = tmp_path / "r"
    compare_fakes(project, output, "one", "two")
    path = run_dir(output, "two") / "run.json"
    path.write_text(path.read_text().replace('"failure": null', '"failure": "exit status 1"'))
    done = reopen(project, "--report-only", output, expect=1)
    assert "two: failed: exit status 1" in done.stdout
    reopen(project, "--resume", output, "--repeats", 2)
    assert set(records(output)) == {f"seed-0/round-{number}/{name}" for number in (1, 2) for name in ("one", "two")}
    for options, words in (
        (("--batch-size", 30), f"--batch-size 30: the comparison in {output} has 20; leave"),
        (("--repeats", 1), f"--repeats 1: the comparison in {output} has 2 already"),
    ):
        done = reopen(project, "--resume", output, *options, expect=2)
        assert done.stderr.startswith(f"compare.py: error: {words}")


@pytest.mark.slow
def test_it_is_resumed_only_on_the_same_data(project, tmp_path):
    data, output = tmp_path / "set", tmp_path / "r"
    pixels, labels = np.zeros((40, 8, 8, 1), np.uint8), np.arange(40) % 2
    write_arrays(data, (pixels, labels), (pixels, labels), ["a", "b"])
    options = ("--dataset", data, "--repeats", 1, "--mode", "plain", "--epochs", 1)
    compare_fakes(project, output, "one", options=(*options, "--batch-size", 20))
    shutil.rmtree(data)
    write_arrays(data, (pixels + 1, labels), (pixels, labels), ["a", "b"])
    failed = reopen(project, "--resume", output, "--repeats", 2, expect=2)
    assert f"--dataset {data}: holds other data than when " in failed.stderr
    assert not run_dir(output, "one", 2).exists()


@pytest.mark.slow
def test_rounds_that_others_disturb_are_made_again(project, tmp_path):
    text, rows = compare_fakes(project, tmp_path / "r", "one", "busy", options=(*FEW_STEPS, "--repeats", 3))
    assert set(records(tmp_path / "r")) == {
        f"seed-0/round-{n}/{name}" for n in (1, 2, 3, 4) for name in ("one", "busy")
    }
    notice = "other programs use 50% of the cores"  # as soon as it is seen, and once
    assert text.count(notice) == 1 and text.index(notice) < text.index(": done")
    assert "other programs kept the machine busy: making 1 more round" in text
    assert [(row["num_runs"], row["num_rounds"], row["num_disturbed"]) for row in rows] == [("4", "3", "1")] * 2


@pytest.mark.slow
def test_a_report_is_made_again_from_the_stored_runs_alone(project, tmp_path):
    output, moved = tmp_path / "r", tmp_path / "moved"
    compare_fakes(project, output, "one", "two", options=(*FEW_STEPS, "--repeats", 3))
    made = ("results.csv", "runs.csv", "results.md", "results.json", "report.html")
    before = {name: (output / name).read_text() for name in made}
    for name in made:
        (output / name).unlink()
    output.rename(moved)
    text = reopen(project, "--report-only", moved).stdout
    assert {name: (moved / name).read_text() for name in made} == before and "starting" not in text
    text = reopen(project, "--report-only", moved, "--target-accuracy", 0.4).stdout
    assert "3 of 3" in text and "reached" in text


@pytest.mark.slow
def test_a_proof_is_kept_and_not_made_again_until_something_changes(project, tmp_path):
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}

    def proves(name, *options):
        text, _ = compare_fakes(project, tmp_path / name, "one", "two", options=(*SHORT, *options), **cache)
        assert "yes, proved in 64-bit runs: losses of the same step differ by at most 0" in text
        return "checking that all rows are the same training" in text

    assert proves("first") and not proves("again") and proves("other", "--learning-rate", 0.01)
    source = project / "one_impl" / "__main__.py"
    code = source.read_text()
    source.write_text(code + "# changed\n")
    assert proves("changed")
    source.write_text(code)


# --- What may go wrong ---


def begin(project, output, *implementations, verify="never", **environment):
    command = (sys.executable, "compare.py", "--output-dir", output, *SHORT, "--verify", verify)
    return start_process((*command, "--implementations", *implementations), project, **environment)


def pids_of(output):
    """The processes of the fake that hangs, as soon as it does."""
    path = run_dir(output, "hang") / "pids"
    return wait_for(path.exists) and list(map(int, path.read_text().split()))


@pytest.mark.slow
def test_a_run_past_its_timeout_is_ended_with_its_children(project, tmp_path):
    options = (*SHORT, "--timeout", 8, "--verify", "never")
    _, rows = compare_fakes(project, tmp_path / "r", "hang", "one", expect=1, options=options)
    assert statuses(rows) == {"hang": "failed", "one": "ok"}
    assert "still running after --timeout 8 seconds" in rows[0]["note"] and gone(pids_of(tmp_path / "r"))


@pytest.mark.slow
def test_the_children_of_one_that_is_killed_end_too(project, tmp_path):
    """Otherwise they would train beside the runs of the resumed comparison, and write into the same folders."""
    with begin(project, tmp_path / "r", "one", "hang") as process:
        pid, child = pids_of(tmp_path / "r")
        process.kill()
    wait_for(lambda: gone([pid]), seconds=5)
    os.kill(child, signal.SIGKILL)  # a process that is none of ours
    reopen(project, "--resume", tmp_path / "r", "--timeout", 4, expect=1)
    assert statuses(read_csv(tmp_path / "r" / "results.csv")) == {"one": "ok", "hang": "failed"}


@pytest.mark.slow
def test_a_folder_belongs_to_one_at_a_time(project, tmp_path):
    output = tmp_path / "r"
    with begin(project, output, "two", "hang") as process:
        pids = pids_of(output)
        for option in ("--resume", "--report-only"):
            (line,) = run(sys.executable, "compare.py", option, output, cwd=project, expect=2).stderr.splitlines()
            assert line.startswith(f"compare.py: error: {option} {output}: another compare.py is at work there")
            assert f"(process {process.pid} on " in line
        (server,) = [child for child in psutil.Process(process.pid).children() if "two_impl" in child.cmdline()]
        (waits,) = server.children()
        before = sum(waits.cpu_times()[:2])
        time.sleep(1)
        assert sum(waits.cpu_times()[:2]) - before < 0.05, "a program that waits for its turn uses a core"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert gone(pids)
    reopen(project, "--report-only", output, expect=1)


PHASES = {
    "proof": lambda output: list(output.glob("proofs/**/config.json")),
    "runs": lambda output: (run_dir(output, "one") / "run.json").exists(),
    "report": lambda output: len(list(output.glob("runs/**/run.json"))) == 4,
}


@pytest.mark.quick("runs-2")
@pytest.mark.parametrize(
    ("phase", "number"), [("proof", 2), ("runs", 2), ("runs", 15), ("report", 2)], ids=lambda value: str(value)
)
def test_ctrl_c_in_each_phase(project, tmp_path, phase, number):
    """What is finished stays, no process is left, and `--resume` makes the rest. SIGTERM does the same."""
    output = tmp_path / "r"
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}  # without a proof that is known already
    process = begin(project, output, "one", "two", "--repeats", 2, verify="auto", **cache)
    wait_for(lambda: PHASES[phase](output), 120)
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err, err
    assert not psutil.wait_procs(family, timeout=10)[1]
    if phase == "runs":
        assert "one " in out and f"python compare.py --resume {output} makes the rest" in err
    reopen(project, "--resume", output)
    assert statuses(read_csv(output / "results.csv")) == {"one": "ok", "two": "ok"}


@pytest.mark.quick("263000")
@pytest.mark.parametrize(("size", "finished"), [(263_000, 1), (630_000, 2)])
def test_without_space_there_is_a_line_and_what_is_finished_is_shown(project, small_disk, size, finished):
    """The disk fills up in the second run's files, or in the report."""
    output = small_disk(size) / "r"
    command = (sys.executable, "compare.py", "--output-dir", output, "--implementations", "one", "two", *SHORT)
    done = run(*command, "--verify", "never", "--turns", "never", cwd=project, expect=1)
    assert "Traceback" not in done.stdout + done.stderr and "No space left on device" in done.stdout + done.stderr
    assert re.findall(r"^(\w+) +[\d.]+% ", done.stdout, re.MULTILINE) == ["one", "two"][:finished], done.stdout
    assert f"python compare.py --{'report-only' if finished == 2 else 'resume'} {output} " in done.stderr
    remount(output.parent, "size=100M")
    reopen(project, "--resume", output)
    assert statuses(read_csv(output / "results.csv")) == {"one": "ok", "two": "ok"}
    assert (output / "report.html").exists() and not list(output.glob("**/.*.????????????????"))


LONG = ("--precision", 64, "--train-size", 418, "--batch-size", 16, "--epochs", 60)


@pytest.mark.slow
def test_a_run_that_was_cut_off_goes_on_from_its_checkpoint(tmp_path):
    """Its losses are those of an uninterrupted run. Its accuracy counts, its times do not."""
    output, options = tmp_path / "r", (*LONG, *CPU, "--repeats", 1, "--mode", "plain", "--checkpoint-every", 100)
    command = (sys.executable, "compare.py", "--output-dir", output, "--implementations", "pt", *options)
    with start_process((*command, "--verify", "never")) as process:
        wait_for(lambda: steps_taken(run_dir(output, "pt")) > 250, 60)
        process.kill()
    done = run(sys.executable, "compare.py", "--resume", output)
    result = read_result(run_dir(output, "pt"))
    assert result.resumed_from >= 200 and result.resumed_from % 100 == 0
    assert "PyTorch: 1 of 1 runs continued from a checkpoint; their times are left out" in done.stdout
    (row,) = read_csv(output / "results.csv")
    assert (row["status"], row["images_per_second"], row["startup_seconds"]) == ("ok", "", "")
    assert read_step_losses(run_dir(output, "pt")) == read_step_losses(train("pt", tmp_path / "whole", *LONG))


@pytest.mark.slow
def test_without_space_for_a_checkpoint_there_is_a_line(tmp_path, small_disk):
    folder = small_disk(700_000) / "r"
    command = (*program_of("pt"), *CPU, *LONG, "--checkpoint-every", 10, "--run-dir", folder)
    (line,) = run(*command, expect=1).stderr.splitlines()
    assert line.startswith(f"python -m pt_impl: error: {folder / 'checkpoints'}") and "No space left on device" in line
    assert len(list((folder / "checkpoints").iterdir())) <= 1, "half a checkpoint is left"
    remount(folder.parent, "size=100M")
    run(*command, "--resume", "auto")
    assert read_step_losses(folder) == read_step_losses(train("pt", tmp_path / "whole", *LONG))
