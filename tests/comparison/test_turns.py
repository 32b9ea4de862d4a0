"""Turns: the programs of a round train one at a time, and one that fails lets the others go on."""

import itertools
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
from conftest import IMPLEMENTATIONS, MODES, ONE_ROUND, read_csv, run, train

from common.record.results import PlanLine, StepLine, TurnLine, read_metrics, read_result, read_step_losses
from common.record.turns import Turn
from common.spec.options import TrainConfig
from comparison.ratios import MIN_CYCLES
from comparison.run import runner, turns
from comparison.run.program import Program
from comparison.run.turns import LEAST_CYCLES, WAKING_STEPS, next_turn, run_in_turns


class Notes:
    """A follower that stores how programs ended; `look(name, line)` is called with each line of their metrics."""

    def __init__(self, look=lambda name, line: None):
        self.look, self.failures, self.started_at, self.trains_at = look, {}, {}, {}

    def started(self, program):
        self.started_at[program.run_dir.name] = time.monotonic()

    def see(self, program, line):
        if isinstance(line, PlanLine):
            self.trains_at[program.run_dir.name] = time.monotonic()
        self.look(program.run_dir.name, line)

    def ended(self, program, ended):
        self.failures[program.run_dir.name] = ended.failure


@pytest.fixture
def round_of(project, tmp_path, monkeypatch):
    """A function that runs a round of fake implementations, each in a folder of its own name."""
    monkeypatch.setattr(runner, "REPOSITORY", project)

    def make(*names, notes=None, timeout=60, **options):
        notes = notes or Notes()
        options = {"epochs": 4, "train_size": 500, "batch_size": 20, "accelerator": "cpu", **options}
        programs = [
            Program(
                implementation=name.partition("-")[0],
                interpreter=sys.executable,
                config=TrainConfig(**options, run_dir=tmp_path / name),
            )
            for name in names
        ]
        run_in_turns(programs, timeout, notes)
        return notes

    return make


def test_a_program_alone_has_turns_too(round_of, tmp_path):
    assert round_of("one").failures == {"one": None}
    assert len(read_metrics(tmp_path / "one", TurnLine)) == 10


def test_in_a_training_that_is_too_short_for_a_turn_all_steps_after_the_warm_up_are_one(round_of, tmp_path):
    round_of("one", "two", epochs=1, max_steps=4)
    for name in ("one", "two"):
        (line,) = read_metrics(tmp_path / name, TurnLine)
        assert (line.cycle, line.first_step, line.last_step, line.images) == (1, 3, 4, 40)
        assert read_result(tmp_path / name).images_per_second == pytest.approx(40 / line.seconds)


def processes_of(folder):
    return [child for child in psutil.Process().children(recursive=True) if str(folder) in " ".join(child.cmdline())]


def test_one_trains_at_a_time_and_none_always_follows_the_same(round_of, tmp_path):
    names = ("one", "two", "one-again")
    notes = round_of(*names)
    assert notes.failures == dict.fromkeys(names)
    assert notes.trains_at["one"] < notes.started_at["two"] < notes.trains_at["two"] < notes.started_at["one-again"]
    found = {name: read_metrics(tmp_path / name, TurnLine) for name in names}
    # Ten steps of warm-up; the other 90 are ten turns of nine steps.
    for name, lines in found.items():
        steps = [(line.cycle, line.first_step, line.last_step, line.images) for line in lines]
        firsts = [(cycle, 10 + 9 * (cycle - 1) + WAKING_STEPS + 1) for cycle in range(1, 11)]
        assert steps == [(cycle, first, first + 5, 120) for cycle, first in firsts], name
        assert len(read_step_losses(tmp_path / name)) == 100 and read_result(tmp_path / name).num_steps == 100
        assert read_result(tmp_path / name).phase_seconds["waiting"] > 0
    order = sorted((line.ended - line.seconds, line.ended, name) for name, lines in found.items() for line in lines)
    assert all(ended <= began for (_, ended, _), (began, _, _) in zip(order, order[1:], strict=False))
    cycles = [[name for _, _, name in order[start : start + 3]] for start in range(0, 30, 3)]
    assert all(set(cycle) == set(names) for cycle in cycles)
    assert all(second == first[::-1] for first, second in zip(cycles[::2], cycles[1::2], strict=True))


def test_a_program_that_is_killed_in_its_turn_lets_the_others_go_on(round_of, tmp_path):
    def kill(name, line):
        if name == "two" and isinstance(line, StepLine) and line.step == 40:
            for process in processes_of(tmp_path / "two"):
                process.kill()

    notes = round_of("one", "two", "crash", "one-again", notes=Notes(kill), log_every_n_steps=1)
    assert notes.failures["two"].startswith("ended by signal 9")
    assert (notes.failures["one"], notes.failures["crash"], notes.failures["one-again"]) == (
        None,
        "exit status 1",
        None,
    )
    for name in ("one", "one-again"):
        assert [line.cycle for line in read_metrics(tmp_path / name, TurnLine)] == list(range(1, 11))


@pytest.mark.slow
def test_a_program_that_hangs_in_its_turn_is_ended_and_the_others_go_on(round_of, tmp_path):
    def stop(name, line):
        if name == "two" and isinstance(line, StepLine) and line.step == 40:
            for process in processes_of(tmp_path / "two"):
                process.suspend()

    notes = round_of("one", "two", notes=Notes(stop), timeout=8, log_every_n_steps=1)
    assert notes.failures == {"one": None, "two": "still running after --timeout 8 seconds"}
    assert len(read_metrics(tmp_path / "one", TurnLine)) == 10


def test_programs_that_do_not_fit_together_train_in_groups_with_the_first_row(project, tmp_path, monkeypatch):
    """Each uses a third of what is free at first; with the margin, two of them fit."""
    monkeypatch.setattr(runner, "REPOSITORY", project)
    monkeypatch.setattr(turns, "free_memory", lambda program: {"memory": 300 - 100 * len(alive)})
    alive = set()

    class Alive(Notes):
        def started(self, program):
            alive.add(program.run_dir.name)

        def ended(self, program, ended):
            alive.discard(program.run_dir.name)
            self.failures[program.run_dir.name] = ended.failure, ended.group

    options = {"epochs": 4, "train_size": 500, "batch_size": 20, "accelerator": "cpu"}
    programs = [
        Program(
            implementation="one",
            interpreter=sys.executable,
            config=TrainConfig(**options, run_dir=tmp_path / name),
            is_reference=name == "b",
        )
        for name in "abcd"
    ]
    notes = Alive()
    run_in_turns(programs, 60, notes)
    groups = {"b": 1, "a": 1, "b.group-2": 2, "c": 2, "b.group-3": 3, "d": 3}
    assert notes.failures == {name: (None, group) for name, group in groups.items()}
    assert all(len(read_metrics(tmp_path / name, TurnLine)) == 10 for name in groups)


@pytest.mark.slow
def test_waiting_for_others_does_not_count_for_the_timeout(round_of):
    """`hang` uses up its own seconds at its end, while `one` waits to be let go."""
    notes = round_of("hang", "one", timeout=6)
    assert notes.failures == {"hang": "still running after --timeout 6 seconds", "one": None}


def test_programs_whose_compare_py_is_gone_train_on(project, tmp_path, monkeypatch):
    """Its connections are closed then, before the processes notice that it has ended."""
    monkeypatch.setattr(runner, "REPOSITORY", project)
    config = TrainConfig(epochs=2, train_size=500, batch_size=20, accelerator="cpu", run_dir=tmp_path / "one")
    program = Program(implementation="one", interpreter=sys.executable, config=config)
    member = turns.TurnsMember(program, 60, Notes())
    member.start()
    assert member.waits and member.done == 10
    process = member.process
    member.hang_up()
    assert process.wait(30) == 0
    assert read_metrics(tmp_path / "one", TurnLine) == [] and read_result(tmp_path / "one").num_steps == 50


def test_what_waits_uses_no_core(round_of, tmp_path):
    used = []

    def look(name, line):
        if name == "two" and isinstance(line, StepLine) and line.step == 20:
            (waits,) = processes_of(tmp_path / "one")
            before = sum(waits.cpu_times()[:2])
            time.sleep(1)
            used.append(sum(waits.cpu_times()[:2]) - before)

    assert round_of("one", "two", notes=Notes(look), log_every_n_steps=1).failures == {"one": None, "two": None}
    assert used == [pytest.approx(0, abs=0.05)]


@pytest.mark.parametrize(
    ("seconds_per_step", "steps_per_epoch", "left", "untimed", "timed", "accelerator"),
    [
        ((0.01, 0.002), 200, 10_000, 3, 20, "cpu"),  # 0.2 s of the slower one
        ((1.0,), 100, 10_000, 3, 1, "cpu"),
        ((0.001,), 100, 100, 3, 7, "cpu"),  # shorter, so that there are ten turns
        ((0.001,), 100, 5, 3, 1, "cpu"),
        ((0.001,), 60, 10_000, 0, 180, "cpu"),  # whole epochs
        ((0.015,), 60, 10_000, 0, 60, "cpu"),  # an epoch of 0.9 s
        ((0.02,), 60, 10_000, 3, 10, "cpu"),  # a part of a longer one
        ((0.001,), 60, 590, 3, 56, "cpu"),  # too few epochs for ten turns
        (
            (0.02, 0.0005),
            100,
            10_000,
            3,
            50,
            "gpu",
        ),  # 0.03 s of the faster one would be more than 1 s of the slower one
        ((0.02, 0.001), 100, 10_000, 3, 30, "gpu"),
        ((0.02, 0.01), 100, 10_000, 3, 10, "gpu"),  # 0.2 s of the slower one are enough
    ],
)
def test_turns_are_equally_long_for_all(
    monkeypatch, seconds_per_step, steps_per_epoch, left, untimed, timed, accelerator
):
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.2)

    class Fake:
        steps_per_call, program = 1, SimpleNamespace(config=TrainConfig(accelerator=accelerator))

        def __init__(self, seconds):
            self.seconds_per_step, self.steps_per_epoch = [seconds], steps_per_epoch

    turn = next_turn(1, 600, left / LEAST_CYCLES, [Fake(seconds) for seconds in seconds_per_step])
    assert turn == Turn(1, 600 + untimed, 600 + untimed + timed)


def test_turns_of_whole_epochs_begin_after_the_epoch_of_the_warm_up():
    class Fake:
        steps_per_call, seconds_per_step, steps_per_epoch = 1, [0.001], 60
        program = SimpleNamespace(config=TrainConfig(accelerator="cpu"))

    assert next_turn(1, 610, 1000, [Fake()]) == Turn(1, 660, 660)
    assert next_turn(2, 660, 1000, [Fake()]) == Turn(2, 660, 720)


def test_a_short_training_has_as_many_turns_if_calls_take_several_steps():
    """The whole call that wakes a program up counts, too: 38 steps of 380, and not 45."""

    class Fake:
        steps_per_call, seconds_per_step, steps_per_epoch = 10, [0.001], 100
        program = SimpleNamespace(config=TrainConfig(accelerator="cpu"))

    assert next_turn(1, 20, 380 / LEAST_CYCLES, [Fake()]) == Turn(1, 30, 58)


def test_a_turn_begins_where_the_farthest_program_waits():
    """The second program takes ten steps in each call, and so goes beyond the end of its turn."""
    given = []

    class Fake:
        waits, done, total_steps, steps_per_epoch, seconds_per_step = True, 10, 500, 100, [0.01]
        program = SimpleNamespace(config=TrainConfig(accelerator="cpu"))

        def __init__(self, steps_per_call):
            self.steps_per_call = steps_per_call

        def take(self, turn):
            given.append((self.done, turn))
            while self.done < turn.until:
                self.done += self.steps_per_call

    turns._train([Fake(1), Fake(10)])
    assert len(given) >= 20
    for done, turn in given:
        assert done + 10 <= turn.timed_after <= turn.until - 10  # a whole call to wake up, and one to time


@pytest.mark.parametrize(
    ("mode", "devices", "epochs", "names"),
    [
        ("plain", 2, (5, 400), ("jax", "pt")),
        *(
            pytest.param(mode, devices, epochs, IMPLEMENTATIONS, marks=pytest.mark.slow)
            for mode, devices, epochs in itertools.product(MODES, (1, 2), ((8, 800), (24, 250)))
        ),
    ],
)
def test_turns_change_no_loss_and_all_processes_of_a_run_wait(tmp_path, mode, devices, epochs, names):
    """8 epochs of 25 steps, each with several turns, or 24 epochs of 8 steps, the last one smaller, each a turn."""
    number, train_size = epochs
    options = ("--train-size", train_size, "--batch-size", 32, "--epochs", number, "--precision", 64)
    options += ("--devices", devices)
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
