"""The benchmarks: pairs, tables and files from made-up programs, and that each script runs."""

import json
import sys

import pytest
from conftest import REPOSITORY, run
from rich.console import Console

from benchmarks.machine import PASSES, share_of_peak
from benchmarks.paired import BenchmarkConfig, Pair, Program, make_folder, measure, report, write_speed
from benchmarks.paired import run as run_program
from common.config import TrainConfig
from common.errors import UserError

SCRIPTS = sorted(path.stem for path in (REPOSITORY / "benchmarks").glob("*.py") if "whole_program" in path.read_text())


def test_ratios_are_of_the_same_round_and_their_median_is_held_to_the_reach(tmp_path, capsys):
    samples = {"ours": [10.0, 30.0, 200.0], "usual": [5.0, 10.0, 150.0]}
    pairs = [Pair("ours", "usual", 2.0), Pair("usual", "ours", 2.0), Pair("ours", None, 40)]
    assert pairs[0].values(samples) == [2, 3, 200 / 150]
    report("speed", "images_per_second", samples, pairs, tmp_path, Console(width=80), {"config": {}})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines if "/ usual" in line] == ["yes"]
    assert [line.split()[-1] for line in lines if "/ ours" in line] == ["NO"]
    stored = json.loads((tmp_path / "speed.json").read_text())
    assert stored["samples"] == samples and [pair["median"] for pair in stored["pairs"]][1:] == [2, 1 / 2, 30]
    assert stored["machine"]["cores"] > 0 and stored["command"].startswith("python -m benchmarks.")


def test_programs_take_turns_in_rotating_order(tmp_path, monkeypatch):
    order = []

    def fake(program, run_dir):
        order.append(program.name)
        return {"images_per_second": len(order)}

    monkeypatch.setattr("benchmarks.paired.run", fake)
    programs = [Program(name, "nothing", TrainConfig()) for name in "abc"]
    samples = measure(programs, 3, tmp_path, Console(quiet=True))
    assert "".join(order) == "abc" + "bca" + "cab"
    assert samples == {"a": [1, 6, 8], "b": [2, 4, 9], "c": [3, 5, 7]}


def test_a_program_that_fails_ends_the_benchmark_with_its_log(tmp_path):
    with pytest.raises(UserError, match=r"broken: ended with status 1; see .*log.txt"):
        run_program(Program("broken", "no_such_module", TrainConfig()), tmp_path / "run")
    assert "No module named no_such_module" in (tmp_path / "run" / "log.txt").read_text()


def test_a_folder_that_holds_something_is_refused(tmp_path):
    (tmp_path / "x").touch()
    with pytest.raises(UserError, match="is not empty"):
        make_folder(BenchmarkConfig(output_dir=tmp_path), "x")


def test_a_runs_share_of_the_peak():
    class Result:
        config = TrainConfig(precision="32")
        accelerator, devices, flops_per_image, images_per_second = "cpu", 2, 10**6, 1000.0

    assert share_of_peak(Result, {"32": 6e9}) == PASSES * 1e9 / 6e9
    Result.accelerator = "gpu"
    assert share_of_peak(Result, {"32": 6e9}) == PASSES * 1e9 / 12e9
    Result.images_per_second = None
    assert share_of_peak(Result, {"32": 6e9}) is None


def test_speeds_are_written_as_they_are(tmp_path):
    write_speed(tmp_path, images_per_second=2.5)
    assert json.loads((tmp_path / "speed.json").read_text()) == {"images_per_second": 2.5}


@pytest.mark.parametrize("script", SCRIPTS)
def test_each_script_runs_alone(script):
    assert "--rounds" in run(sys.executable, "-m", f"benchmarks.{script}", "--help").stdout


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["tf", "pt", "ptl"])
@pytest.mark.parametrize("devices", [1, 2])
def test_pairs_from_inside_a_run(tmp_path, implementation, devices):
    config = TrainConfig(epochs=4, devices=devices, threads_per_device=1, accelerator="cpu")
    found = run_program(Program("x", f"benchmarks.loops.{implementation}_limit", config), tmp_path / "run")
    assert 0.2 < found["efficiency"] < 3 and found["images_per_second"] > 0


@pytest.mark.slow
def test_memory_does_not_grow_with_the_data(tmp_path):
    """Far below the size of the set for every implementation; the slow part is importing three frameworks."""
    options = ("--gib", "2.5", "--steps", "20", "--output-dir", str(tmp_path / "m"))
    output = run(sys.executable, "-m", "benchmarks.memory", *options).stdout
    found = json.loads((tmp_path / "m" / "memory.json").read_text())
    assert found["train_images_bytes"] > 2.4 * 2**30 and "NO" not in output
    assert max(found["peak_private_bytes_of_a_process"].values()) < 2 * 2**30
