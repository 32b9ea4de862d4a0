"""Benchmarks: pairs, tables and files of fake programs, and that each script runs."""

import json
import sys
from typing import get_args

import numpy as np
import pytest
from conftest import IMPLEMENTATIONS, REPOSITORY, run
from rich.console import Console

from benchmarks import gpu, limit
from benchmarks.paired import (
    FolderConfig,
    ModesConfig,
    Pair,
    TimedProgram,
    make_folder,
    measure,
    measure_in_turns,
    ratios_of_runs,
    report,
    report_turns,
)
from benchmarks.paired import run as run_program
from common.platform.cli import parse_options
from common.platform.errors import UserError
from common.record.results import PlanLine, TurnLine, read_metrics
from common.spec.options import TrainConfig
from comparison.plan.options import CompareConfig
from comparison.run.program import Ended
from comparison.run_maker import prepare

SCRIPTS = sorted(path.stem for path in (REPOSITORY / "benchmarks").glob("*.py") if "__main__" in path.read_text())
WITHOUT_ROUNDS = ("gpu", "network", "scaling", "ratio_quality", "memory")


def test_ratios_of_runs_are_of_the_same_round(tmp_path, capsys):
    samples = {"ours": [20.0, 60.0, 200.0], "usual": [10.0, 30.0, 100.0]}
    ratios = ratios_of_runs(samples, [Pair("ours", "usual", 2.5), Pair("usual", "ours", 0.4)])
    assert [ratio.estimate for ratio in ratios.values()] == pytest.approx([2, 1 / 2])
    report("speed", "images_per_second", samples, ratios, tmp_path, Console(width=80), {"config": {}}, {"ours": 40})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines if "ours" in line] == ["yes", "NO", "yes"]
    stored = json.loads((tmp_path / "speed.json").read_text())
    assert stored["samples"] == samples and stored["ratios"][0]["ratio"]["verdict"] == "faster"
    assert stored["machine"]["cores"] > 0 and stored["command"].startswith("python -m benchmarks.")


def write_turns(run_dir, speeds, other_load=0.0, steps_per_epoch=1000):
    run_dir.mkdir(parents=True)
    steps = {"total_steps": 1000, "steps_per_epoch": steps_per_epoch}
    lines = [PlanLine(kind="plan", implementation="pt", num_epochs=1, **steps)]
    for cycle, speed in enumerate(speeds, start=1):
        values = {"images": 100, "seconds": 100 / speed, "ended": cycle, "own_load": 0.5, "other_load": other_load}
        steps = {"cycle": cycle, "first_step": 10 * cycle, "last_step": 10 * cycle + 5}
        lines.append(TurnLine(kind="turn", **steps, **values))
    (run_dir / "metrics.jsonl").write_text("".join(line.model_dump_json() + "\n" for line in lines))


def test_ratios_in_turns_are_of_the_same_cycle_and_without_disturbed_turns(tmp_path, capsys):
    drift = np.linspace(1, 3, 20)
    write_turns(tmp_path / "a", 300 * drift)
    write_turns(tmp_path / "b", 100 * drift)
    write_turns(tmp_path / "noisy", 100 * drift, other_load=0.5)
    run_dirs = {name: [tmp_path / name] for name in ("a", "b", "noisy")}
    pairs = [Pair("a", "b", 2.9), Pair("a", "noisy")]
    report_turns("speed", run_dirs, pairs, tmp_path, Console(width=80), {})
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(next(line for line in lines if "a / b" in line).split()) == "a / b 3.000 3.000-3.000 >= 2.9 yes"
    assert "not measured" in next(line for line in lines if "a / noisy" in line)
    stored = json.loads((tmp_path / "speed.json").read_text())
    assert len(stored["turns"]["a"][0]) == 20


def test_programs_that_pairs_connect_are_alive_together(tmp_path, monkeypatch):
    rounds = []

    def fake(programs, timeout, follower):
        rounds.append("".join(program.words[-1] for program in programs))
        for program in programs:
            write_turns(program.run_dir, [100.0])
            follower.ended(program, Ended.unknown("x").model_copy(update={"failure": None}))

    monkeypatch.setattr("benchmarks.paired.run_in_turns", fake)
    programs = [TimedProgram(name, name, TrainConfig()) for name in "abcde"]
    pairs = [Pair("a", "c"), Pair("d", "b"), Pair("e", "a")]
    run_dirs = measure_in_turns(programs, pairs, 2, tmp_path, Console(quiet=True))
    assert rounds == ["ace", "bd"] * 2
    assert run_dirs["d"] == [tmp_path / "round-1" / "d", tmp_path / "round-2" / "d"]


def test_programs_run_in_rotating_order(tmp_path, monkeypatch):
    order = []

    def fake(program, run_dir):
        order.append(program.name)
        return {"efficiency": len(order)}

    monkeypatch.setattr("benchmarks.paired.run", fake)
    programs = [TimedProgram(name, "nothing", TrainConfig()) for name in "abc"]
    samples = measure(programs, 3, tmp_path, Console(quiet=True), "efficiency")
    assert "".join(order) == "abc" + "bca" + "cab"
    assert samples == {"a": [1, 6, 8], "b": [2, 4, 9], "c": [3, 5, 7]}


TURNS_LOOP = """
import sys
from pathlib import Path
from benchmarks.loops.timed import TimedSteps
from common.platform.cli import parse_options
from common.spec.options import TrainConfig
timed = TimedSteps(parse_options(TrainConfig, "python -m x", "x"))
for _ in range(timed.config.max_steps):
    timed.step()
"""


def test_a_loop_without_a_recorder_takes_turns(tmp_path, monkeypatch):
    (tmp_path / "turns_loop.py").write_text(TURNS_LOOP)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    config = TrainConfig(max_steps=200, batch_size=7, epochs=1)
    programs = [TimedProgram(name, "turns_loop", config) for name in "ab"]
    run_dirs = measure_in_turns(programs, [Pair("a", "b")], 1, tmp_path / "runs", Console(quiet=True))
    for (run_dir,) in run_dirs.values():
        turns = read_metrics(run_dir, TurnLine)
        assert len(turns) >= 10 and turns[0].first_step == 14  # after ten steps of warm-up and three of waking
        for turn in turns:
            assert turn.images == 7 * (turn.last_step - turn.first_step + 1)
        assert {turn.cycle for turn in turns} == set(range(1, len(turns) + 1))


def test_a_program_that_fails_ends_the_benchmark_with_its_log(tmp_path):
    with pytest.raises(UserError, match=r"broken: exit status 1; see .*log.txt"):
        run_program(TimedProgram("broken", "no_such_module", TrainConfig()), tmp_path / "run")
    assert "No module named no_such_module" in (tmp_path / "run" / "log.txt").read_text()


def test_a_folder_that_holds_something_is_refused(tmp_path):
    (tmp_path / "x").touch()
    with pytest.raises(UserError, match="is not empty"):
        make_folder(FolderConfig(output_dir=tmp_path), "x")


def test_what_needs_a_gpu_goes_on_when_a_part_fails_or_hangs(tmp_path):
    codes = {"peak": "print('fine')", "modes": "raise SystemExit('broken')", "turns": "import time; time.sleep(60)"}
    parts = [gpu.Part(name, "shows", (sys.executable, "-c", code), 0.02) for name, code in codes.items()]
    found = [gpu.run_part(part, tmp_path, 60) for part in parts]
    assert [part["status"] for part in found] == ["ok", "exit status 1", "ended after 1 s"]
    page = gpu.to_page("made up", parts, found, ["limit, for want of time"], tmp_path)
    assert page.startswith("# made up\n") and "broken" in page and "| limit, for want of time |  | left out |" in page
    named = {part.name for part in gpu.make_parts(gpu.GpuConfig(beside=["a.py"]), ["pt", "tf"], tmp_path)}
    assert {name.partition(" ")[0] for name in named} == set(get_args(gpu.PartName))


def test_the_comparisons_of_a_gpu_can_begin(tmp_path):
    """As far as can be seen without one: no option or network is refused."""
    options = gpu.GpuConfig(accelerator="cpu")
    parts = [part for part in gpu.make_parts(options, ["pt"], tmp_path) if part.command[1] == "compare.py"]
    without_data = [part for part in parts if part.dataset is None]
    assert len(without_data) >= 7
    for part in without_data:
        prepare(parse_options(CompareConfig, "compare.py", "", part.command[2:]), Console(quiet=True))


@pytest.mark.quick("limit")
@pytest.mark.parametrize("script", SCRIPTS)
def test_each_script_runs_alone(script):
    text = run(sys.executable, "-m", f"benchmarks.{script}", "--help").stdout
    assert "--output-dir" in text
    assert ("--rounds" in text) == (script not in WITHOUT_ROUNDS)


def test_rows_are_implementations_in_modes_and_what_is_to_be_reached_is_reported_of_rows():
    names = [row.name for row in ModesConfig().rows]
    assert names[:4] == ["tf", "tf tuned", "keras", "keras tuned"] and len(names) == 2 * len(IMPLEMENTATIONS)
    assert [row.name for row in ModesConfig(implementations=["pt"], mode=["tuned"]).rows] == ["pt tuned"]
    for reach in limit.REACH.values():
        assert set(reach) <= set(names)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("mode", ["plain", "tuned"])
def test_pairs_from_inside_a_run(tmp_path, implementation, devices, mode):
    config = TrainConfig(
        epochs=4, devices=devices, threads_per_device=1, accelerator="cpu", mode=mode, **limit.SAME_STEP
    )
    found = run_program(TimedProgram("x", f"benchmarks.loops.{implementation}_limit", config), tmp_path / "run")
    assert found["efficiency"] > 0 and found["images_per_second"] > 0  # beside other programs it may be any


@pytest.mark.slow
def test_memory_does_not_grow_with_the_data(tmp_path):
    """The peak is far below the data set's size for every implementation and mode. Imports take most of the time."""
    options = ("--gib", "2.5", "--steps", "20", "--output-dir", str(tmp_path / "m"))
    output = run(sys.executable, "-m", "benchmarks.memory", *options).stdout
    found = json.loads((tmp_path / "m" / "memory.json").read_text())
    assert found["train_images_bytes"] > 2.4 * 2**30 and "NO" not in output
    assert len(found["peak_private_bytes_of_a_process"]) == 2 * len(IMPLEMENTATIONS)
    assert max(found["peak_private_bytes_of_a_process"].values()) < 2 * 2**30


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_mode_tutorial_is_as_fast_as_independent_programs(tmp_path, data_dir):
    options = ("--data-dir", data_dir, "--rounds", 3, "--output-dir", tmp_path / "u")
    run(sys.executable, "-m", "benchmarks.usual", *options, timeout=1800)
    pairs = json.loads((tmp_path / "u" / "usual.json").read_text())["ratios"]
    assert [pair["name"] for pair in pairs] == [*IMPLEMENTATIONS]
    for pair in pairs:  # on a busy machine the intervals are wider
        assert pair["ratio"]["low"] <= 1.05 and pair["ratio"]["high"] >= 0.95, pair
