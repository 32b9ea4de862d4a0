"""Turns: the programs of a round train one at a time, and one that fails lets the others go on; the load meanwhile."""

import ctypes
import itertools
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from conftest import IMPLEMENTATIONS, compare, gone, train, wait_for

from common.record.results import TurnLine, read_metrics, read_result, read_step_losses
from common.record.turns import Turn
from common.spec.options import TrainConfig
from comparison.ratios import MIN_CYCLES
from comparison.run import load_meter, runner, turns
from comparison.run.load_meter import LoadMeter
from comparison.run.program import Program
from comparison.run.turns import LEAST_CYCLES, WAKING_STEPS, next_turn, run_in_turns


def test_one_trains_at_a_time_and_none_always_follows_the_same(project, tmp_path):
    names, turns_of = ("one", "two", "busy"), {}
    options = ("--implementations", *names, "--verify", "never", "--epochs", 4, "--train-size", 500, "--batch-size", 20)
    compare(tmp_path / "r", *options, cwd=project)
    for name in names:
        run_dir = tmp_path / "r/runs/seed-0/round-1" / name
        lines = turns_of[name] = read_metrics(run_dir, TurnLine)
        # Ten steps of warm-up; the other 90 are ten turns of nine steps.
        steps = [(line.cycle, line.first_step, line.last_step, line.images) for line in lines]
        firsts = [(cycle, 10 + 9 * (cycle - 1) + WAKING_STEPS + 1) for cycle in range(1, 11)]
        assert steps == [(cycle, first, first + 5, 120) for cycle, first in firsts], name
        assert len(read_step_losses(run_dir)) == 100 and read_result(run_dir).phase_seconds["waiting"] > 0
    order = sorted((line.ended - line.seconds, line.ended, name) for name, lines in turns_of.items() for line in lines)
    assert all(ended <= began for (_, ended, _), (began, _, _) in zip(order, order[1:], strict=False))
    cycles = [[name for _, _, name in order[start : start + 3]] for start in range(0, 30, 3)]
    assert all(set(cycle) == set(names) for cycle in cycles)
    assert all(second == first[::-1] for first, second in zip(cycles[::2], cycles[1::2], strict=True))


def test_programs_that_do_not_fit_together_train_in_groups_with_the_first_row(project, tmp_path, monkeypatch):
    """Each uses a third of what is free at first; with the margin, two of them fit."""
    groups, alive = {}, set()
    notes = SimpleNamespace(
        started=lambda program: alive.add(program.run_dir),
        see=lambda program, line: None,
        ended=lambda program, ended: (
            alive.discard(program.run_dir),
            groups.update({program.run_dir.name: ended.group}),
        ),
    )
    monkeypatch.setattr(runner, "REPOSITORY", project)
    monkeypatch.setattr(turns, "free_memory", lambda program: {"memory": 300 - 100 * len(alive)})
    config = TrainConfig(epochs=4, train_size=500, batch_size=20, accelerator="cpu")
    programs = [
        Program(
            implementation="one",
            interpreter=sys.executable,
            config=config.replace(run_dir=tmp_path / name),
            is_reference=name == "b",
        )
        for name in "abcd"
    ]
    run_in_turns(programs, 60, notes)
    assert groups == {"b": 1, "a": 1, "b.group-2": 2, "c": 2, "b.group-3": 3, "d": 3}
    assert all(len(read_metrics(tmp_path / name, TurnLine)) == 10 for name in groups)


@pytest.mark.parametrize(
    ("at_import", "rounds", "imports"),
    [("", 2, 1), ("if 'fork_server' in sys.argv[0]: os.kill(os.getpid(), signal.SIGILL)", 1, 2)],
)
def test_programs_in_turns_share_one_import_and_start_anew_where_it_fails(
    project, tmp_path, at_import, rounds, imports
):
    folder, noted = project / "counted_impl", tmp_path / "noted"
    folder.mkdir(exist_ok=True)
    count = f"import os, signal, sys\nwith open({str(noted)!r}, 'a') as noted: noted.write('x')\n"
    (folder / "backend.py").write_text(count + at_import)
    (folder / "__main__.py").write_text("import counted_impl.backend\nfrom fake_training import run\nrun('counted')")
    options = ("--implementations", "counted", "one", "--repeats", rounds, "--epochs", 4, "--train-size", 500)
    compare(tmp_path / "r", *options, "--batch-size", 20, "--verify", "never", cwd=project)
    assert noted.read_text() == "x" * imports
    memory = read_result(tmp_path / "r/runs/seed-0/round-1/counted").peak_memory_bytes
    assert (memory is None) == (imports == 1)


def test_another_server_takes_the_place_of_one_that_has_ended_or_whose_code_or_environment_has_changed(
    project, monkeypatch
):
    def server():
        runner.begin_imports([program, program])
        return runner._servers["one"][1]._process.pid

    monkeypatch.setattr(runner, "REPOSITORY", project)
    program = Program(implementation="one", interpreter=sys.executable, config=TrainConfig(accelerator="cpu"))
    pids = [server()]
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    pids.append(server())
    monkeypatch.setattr(runner, "code_sha256", lambda: "other")
    pids.append(server())
    os.kill(pids[-1], signal.SIGKILL)
    wait_for(lambda: gone([pids[-1]]))
    assert server() not in pids and gone(pids)


def fake(seconds=0.001, steps_per_epoch=60, accelerator="cpu", steps_per_call=1):
    return SimpleNamespace(
        steps_per_call=steps_per_call,
        seconds_per_step=[seconds],
        steps_per_epoch=steps_per_epoch,
        program=SimpleNamespace(config=TrainConfig(accelerator=accelerator)),
    )


@pytest.mark.parametrize(
    ("members", "done", "left", "turn"),
    [
        ([fake(0.01, 200), fake(0.002, 200)], 600, 10_000, (603, 623)),  # 0.2 s of the slower one
        ([fake(0.001, 100)], 600, 100, (603, 610)),  # shorter, so that there are ten turns
        ([fake(0.001)], 600, 10_000, (600, 780)),  # whole epochs
        ([fake(0.001)], 610, 10_000, (660, 660)),  # the rest of the epoch of the warm-up
        # 0.03 s of the faster one would be more than 1 s of the slower one.
        ([fake(0.02, 100, "gpu"), fake(0.0005, 100, "gpu")], 600, 10_000, (603, 653)),
        ([fake(0.001, 100, steps_per_call=10)], 20, 380, (30, 58)),  # a whole call wakes the program up
    ],
)
def test_turns_are_equally_long_for_all(monkeypatch, members, done, left, turn):
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.2)
    assert next_turn(1, done, left / LEAST_CYCLES, members) == Turn(1, *turn)


@pytest.mark.parametrize(
    ("mode", "epochs", "train_size", "names"),
    [
        ("plain", 5, 400, ("jax", "pt")),
        pytest.param("plain", 24, 250, IMPLEMENTATIONS, marks=pytest.mark.slow),
        pytest.param("tuned", 8, 800, IMPLEMENTATIONS, marks=pytest.mark.slow),
    ],
)
def test_turns_change_no_loss_and_all_processes_of_a_run_wait(tmp_path, mode, epochs, train_size, names):
    """Epochs of several turns, or 24 epochs of 8 steps, the last one smaller, each a turn."""
    options = ("--train-size", train_size, "--batch-size", 32, "--epochs", epochs, "--precision", 64, "--devices", 2)
    options += ("--threads-per-device", 1, "--accelerator", "cpu", "--mode", mode)
    _, rows = compare(tmp_path / "r", "--implementations", *names, "--verify", "never", *options)
    assert [(row["status"], row["num_rounds"]) for row in rows] == [("ok", "1")] * len(names)
    for name in names:
        folder = tmp_path / "r" / "runs" / "seed-0" / "round-1" / (name if mode == "plain" else f"{name}-{mode}")
        lines = read_metrics(folder, TurnLine)
        # In tuned mode Keras makes calls of ten steps, which wake it up and are timed whole: fewer turns.
        assert len(lines) >= (MIN_CYCLES if mode == "tuned" else LEAST_CYCLES)
        assert all(line.last_step < later.first_step for line, later in itertools.pairwise(lines))
        assert read_step_losses(folder) == read_step_losses(train(name, tmp_path / name, *options))


@pytest.mark.skipif(sys.platform != "linux", reason="subreapers are Linux's")
def test_a_child_that_has_ended_but_was_not_reaped_delays_nothing(monkeypatch):
    """Such as one of Lightning's in a container whose first process does not reap what others have left."""
    monkeypatch.setattr(runner, "GRACE_SECONDS", 60.0)
    ctypes.CDLL(None).prctl(36, 1)  # prctl(2): PR_SET_CHILD_SUBREAPER, so this process gets what others leave
    try:
        process = subprocess.Popen([sys.executable, "-c", "import os; os.fork()"], start_new_session=True)
        assert process.wait() == 0
        wait_for(lambda: os.waitid(os.P_PGID, process.pid, os.WEXITED | os.WNOWAIT))
        began = time.monotonic()
        runner.end_all([SimpleNamespace(process=process, program=PROGRAM)])
        assert time.monotonic() - began < 30
    finally:
        ctypes.CDLL(None).prctl(36, 0)
        os.waitpid(-process.pid, 0)


# --- The load of other programs, which other tests may be, too ---

PROGRAM = Program(implementation="one", interpreter="python", config=TrainConfig(run_dir="r"))


def test_a_busy_loop_beside_is_seen():
    meter, busy_loop = LoadMeter(), f"{sys.executable} -c 'while True: pass' & wait"  # a child would be one's own load
    with subprocess.Popen(["sh", "-c", busy_loop], start_new_session=True) as shell:
        time.sleep(1)
        ended = meter.ended(PROGRAM, None)
        os.killpg(shell.pid, signal.SIGKILL)
    assert ended.other_load > 0.5 / os.cpu_count()
    assert 1 <= ended.process_seconds < 5 and ended.failure is None


def test_a_limit_of_the_container_that_stopped_it(monkeypatch):
    periods = iter([(100, 10), (150, 35)])
    monkeypatch.setattr(load_meter, "cpu_periods", lambda: next(periods))
    assert LoadMeter().ended(PROGRAM, None).throttled == 0.5
