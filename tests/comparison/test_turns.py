"""Turns: the programs of a round train one at a time, and one that fails lets the others go on; the load meanwhile."""

import itertools
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
from conftest import IMPLEMENTATIONS, ONE_ROUND, read_csv, run, train

from common.record.results import PlanLine, StepLine, TurnLine, read_metrics, read_result, read_step_losses
from common.record.turns import Turn
from common.spec.options import TrainConfig
from comparison.ratios import MIN_CYCLES
from comparison.run import load_meter, runner, turns
from comparison.run.load_meter import LoadMeter
from comparison.run.program import Program
from comparison.run.turns import LEAST_CYCLES, WAKING_STEPS, next_turn, run_in_turns


class Notes:
    """A follower that stores how programs ended; `look(name, line)` is called with each line of their metrics."""

    def __init__(self, look=lambda name, line: None):
        self.look, self.failures, self.groups, self.alive = look, {}, {}, set()
        self.started_at, self.trains_at = {}, {}

    def started(self, program):
        self.alive.add(program.run_dir.name)
        self.started_at[program.run_dir.name] = time.monotonic()

    def see(self, program, line):
        if isinstance(line, PlanLine):
            self.trains_at[program.run_dir.name] = time.monotonic()
        self.look(program.run_dir.name, line)

    def ended(self, program, ended):
        self.alive.discard(program.run_dir.name)
        self.failures[program.run_dir.name] = ended.failure
        self.groups[program.run_dir.name] = ended.group


@pytest.fixture
def round_of(project, tmp_path, monkeypatch):
    """A function that runs a round of fake implementations, each in a folder of its own name."""
    monkeypatch.setattr(runner, "REPOSITORY", project)

    def make(*names, notes=None, reference=None, **options):
        notes = notes or Notes()
        options = {"epochs": 4, "train_size": 500, "batch_size": 20, "accelerator": "cpu", **options}
        programs = [
            Program(
                implementation=name.partition("-")[0],
                interpreter=sys.executable,
                config=TrainConfig(**options, run_dir=tmp_path / name),
                is_reference=name == reference,
            )
            for name in names
        ]
        run_in_turns(programs, 60, notes)
        return notes

    return make


def at_step(number, name, action):
    """A follower that does something when program `name` has taken its step `number`."""

    def look(program, line):
        if program == name and isinstance(line, StepLine) and line.step == number:
            action()

    return Notes(look)


def processes_of(folder):
    return [child for child in psutil.Process().children(recursive=True) if str(folder) in " ".join(child.cmdline())]


def test_a_training_that_is_too_short_for_a_turn_is_one(round_of, tmp_path):
    round_of("one", "two", epochs=1, max_steps=4)
    for name in ("one", "two"):
        (line,) = read_metrics(tmp_path / name, TurnLine)
        assert (line.cycle, line.first_step, line.last_step, line.images) == (1, 3, 4, 40)
        assert read_result(tmp_path / name).images_per_second == pytest.approx(40 / line.seconds)


def test_one_trains_at_a_time_and_none_always_follows_the_same(round_of, tmp_path):
    names = ("one", "two", "one-again")
    notes = round_of(*names)
    assert notes.failures == dict.fromkeys(names)
    assert notes.trains_at["one"] < notes.started_at["two"] < notes.trains_at["two"] < notes.started_at["one-again"]
    found = {name: read_metrics(tmp_path / name, TurnLine) for name in names}
    assert read_result(tmp_path / "two").phase_seconds["waiting"] > 0
    # Ten steps of warm-up; the other 90 are ten turns of nine steps.
    for name, lines in found.items():
        steps = [(line.cycle, line.first_step, line.last_step, line.images) for line in lines]
        firsts = [(cycle, 10 + 9 * (cycle - 1) + WAKING_STEPS + 1) for cycle in range(1, 11)]
        assert steps == [(cycle, first, first + 5, 120) for cycle, first in firsts], name
        assert len(read_step_losses(tmp_path / name)) == 100
    order = sorted((line.ended - line.seconds, line.ended, name) for name, lines in found.items() for line in lines)
    assert all(ended <= began for (_, ended, _), (began, _, _) in zip(order, order[1:], strict=False))
    cycles = [[name for _, _, name in order[start : start + 3]] for start in range(0, 30, 3)]
    assert all(set(cycle) == set(names) for cycle in cycles)
    assert all(second == first[::-1] for first, second in zip(cycles[::2], cycles[1::2], strict=True))


def test_a_program_that_is_killed_in_its_turn_lets_the_others_go_on(round_of, tmp_path):
    notes = at_step(40, "two", lambda: [process.kill() for process in processes_of(tmp_path / "two")])
    round_of("one", "two", "crash", "one-again", notes=notes, log_every_n_steps=1)
    assert notes.failures.pop("two").startswith("ended by signal 9")
    assert notes.failures == {"one": None, "crash": "exit status 1", "one-again": None}
    for name in ("one", "one-again"):
        assert [line.cycle for line in read_metrics(tmp_path / name, TurnLine)] == list(range(1, 11))


def test_programs_that_do_not_fit_together_train_in_groups_with_the_first_row(round_of, tmp_path, monkeypatch):
    """Each uses a third of what is free at first; with the margin, two of them fit."""
    notes = Notes()
    monkeypatch.setattr(turns, "free_memory", lambda program: {"memory": 300 - 100 * len(notes.alive)})
    round_of("one-a", "one-b", "one-c", "one-d", notes=notes, reference="one-b")
    groups = {"one-b": 1, "one-a": 1, "one-b.group-2": 2, "one-c": 2, "one-b.group-3": 3, "one-d": 3}
    assert notes.groups == groups and notes.failures == dict.fromkeys(groups)
    assert all(len(read_metrics(tmp_path / name, TurnLine)) == 10 for name in groups)


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
    command = (sys.executable, "compare.py", "--implementations", *names, "--verify", "never", *options, *ONE_ROUND)
    run(*command, "--output-dir", tmp_path / "r")
    rows = read_csv(tmp_path / "r" / "results.csv")
    assert [(row["status"], row["num_rounds"]) for row in rows] == [("ok", "1")] * len(names)
    for name in names:
        folder = tmp_path / "r" / "runs" / "seed-0" / "round-1" / (name if mode == "plain" else f"{name}-{mode}")
        lines = read_metrics(folder, TurnLine)
        # In tuned mode Keras makes calls of ten steps, which wake it up and are timed whole: fewer turns.
        assert len(lines) >= (MIN_CYCLES if mode == "tuned" else LEAST_CYCLES)
        assert all(line.last_step < later.first_step for line, later in itertools.pairwise(lines))
        assert read_step_losses(folder) == read_step_losses(train(name, tmp_path / name, *options))


# --- The load of other programs, which other tests may be, too ---

PROGRAM = Program(implementation="one", interpreter="python", config=TrainConfig(run_dir="r"))


def test_a_busy_loop_beside_is_seen():
    meter = LoadMeter()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        time.sleep(1)
        ended = meter.ended(PROGRAM, None)
        busy.kill()
    assert ended.other_load > 0.5 / os.cpu_count()
    assert 1 <= ended.process_seconds < 5 and ended.failure is None


def test_a_limit_of_the_container_that_stopped_it(monkeypatch):
    periods = iter([(100, 10), (150, 35)])
    monkeypatch.setattr(load_meter, "cpu_periods", lambda: next(periods))
    assert LoadMeter().ended(PROGRAM, None).throttled == 0.5
