"""benchmarks.ratio_quality: continuing comparisons, copies of an implementation, counts of made-up comparisons."""

import json
import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from benchmarks import ratio_quality
from benchmarks.ratio_quality import Maker, Sample, TurnsConfig, Way
from comparison import Comparison


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A maker whose comparisons take three seconds and have the rows in `made.rows`, one after the other.

    Those of an experiment in `made.other_rows` have the rows that stand there.
    """

    def fake(self, folder, way):
        folder.parent.mkdir(parents=True, exist_ok=True)
        (folder.parent / f"{folder.name}.log").write_text("")
        (folder.parent / f"{folder.name}.json").write_text('{"seconds": 3}')
        return 3.0

    def load(folder):
        number = int(folder.name.split("-")[0]) - 1
        values = maker.other_rows.get(folder.parent.name, maker.rows)[number]
        names = [(name, mode) for name in ("tf", "keras", "pt", "pt2", "ptl") for mode in ("plain", "tuned")]
        columns = ("implementation", "mode", "ratio", "ratio_low", "ratio_high", "verdict")
        rows = pd.DataFrame([(*name, *values) for name in names], columns=columns)
        rows["images_per_second"] = 1000.0 * (number + 1)
        # Of each of three runs, half of the turns stall; a third kind of turn is disturbed by other programs.
        of_run = rows[["implementation", "mode"]].assign(images=rows["images_per_second"], own_load=0.5)
        kinds = ((0.3, 0.0), (0.7, 0.0), (9.0, 0.5))
        runs = [
            of_run.assign(run_dir=run, seconds=seconds, other_load=other) for run in "abc" for seconds, other in kinds
        ]
        frames = dict.fromkeys(("runs", "epochs", "steps"), pd.DataFrame())
        return Comparison(rows, turns=pd.concat(runs), **frames, warnings=[], missing=0)

    class MadeUp(Maker):
        rows, other_rows = [], {}

    monkeypatch.setattr(MadeUp, "compare", fake)
    monkeypatch.setattr(ratio_quality, "load", load)
    maker = MadeUp(tmp_path, TurnsConfig(comparisons=3), Console(width=80))
    return maker


def test_comparisons_alternate_and_later_calls_continue(made):
    ways = {"quiet": Way(()), "busy": Way(())}
    for _ in range(2):
        samples = made.make("busy", ways)
    assert {name: [turn.folder.name for turn in ones] for name, ones in samples.items()} == {
        "quiet": ["001-quiet", "003-quiet", "005-quiet"],
        "busy": ["002-busy", "004-busy", "006-busy"],
    }


def test_wrong_and_missing_verdicts_are_counted(made, monkeypatch, capsys):
    monkeypatch.setattr(Maker, "copy", lambda self, name: self.folder)
    made.rows += [
        (1.0, 0.98, 1.02, "no difference shown"),
        (math.nan, math.nan, math.nan, None),
        (1.1, 1.05, 1.2, "faster"),
    ]
    found = ratio_quality.truth(made)
    assert found["quiet"]["verdicts"] == ["no difference shown", "faster"] and found["busy"]["verdicts"] == [None]
    lines = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines() if line.split()}
    assert lines["quiet"] == ["2", "1", "0", "50%"] and lines["busy"][:3] == ["1", "0", "1"]


def test_intervals_with_the_median_are_counted(made, capsys):
    made.rows += [(1.0, 0.9, 1.1, "x"), (1.2, 1.15, 1.25, "x"), (1.1, 1.05, 1.2, "x")]
    assert ratio_quality.repeat(made)["pt"] == [[1.0, 0.9, 1.1], [1.2, 1.15, 1.25], [1.1, 1.05, 1.2]]
    (line,) = [line.split() for line in capsys.readouterr().out.splitlines() if "pt / tf" in line]
    assert line[3:] == ["3", "1.100", "2/3", "6.9%", "9.1%"]


def test_other_ways_are_held_against_the_repeated_comparison(made, capsys):
    made.rows += [(1.0, 1 / 1.1, 1.1, "x")] * 3
    made.other_rows["old-way"] = [(1.0, 1 / 1.5, 1.5, "x")] * 3
    unknown = math.nan, math.nan, math.nan, None
    made.other_rows["busy"] = [(1.1, 1.0, 1.2, "x"), (0.9, 0.8, 1.0, "x"), unknown]
    ratio_quality.repeat(made)
    ratio_quality.old_way(made)
    assert "pt / tf: in turns the interval is 5.0 times as narrow" in capsys.readouterr().out
    found = ratio_quality.busy(made)
    assert found["pt"][:2] == [1.1, 0.9] and len(found["no_verdict"]) == 1
    assert "pt / tf beside a busy loop, over the median without it: 1.100, 0.900, nan" in capsys.readouterr().out


def test_speeds_in_turns_are_divided_by_those_alone(made, capsys):
    made.rows += [(1.0, 0.9, 1.1, "x")] * 6
    for _ in range(2):
        found = ratio_quality.alone(made)
    # The nth comparison has n thousand images per second, and twice as many in its turns.
    assert found["keras tuned"] == {"1": [2 * 1 / 2, 2 * 5 / 6], "2": [2 * 3 / 4]}
    assert "1.333" in capsys.readouterr().out


@pytest.mark.parametrize("between", [0.0, 0.03])
def test_differences_between_processes_are_distinguished_from_the_noise_of_turns(between):
    random = np.random.default_rng(0)
    processes, cycles = random.normal(0, between, (200, 1)), random.normal(0, 0.5, 100)
    speeds = np.exp(processes + cycles + random.normal(0, 0.2, (200, 100)))
    assert ratio_quality.deviation_between(speeds) == pytest.approx(between, abs=0.01)


def test_half_width_of_an_interval(made):
    made.rows.append((1.0, 1 / 1.1, 1.1, "x"))
    assert Sample(made.folder / "001-x", 1.0).half_width("pt") == pytest.approx(0.1)


@pytest.mark.slow
def test_a_copy_with_more_work_is_another_implementation(tmp_path):
    maker = Maker(tmp_path, TurnsConfig(), Console(quiet=True))
    tree = maker.copy("slow", products=3)
    assert tree == maker.copy("slow", products=9)  # it is made once
    train = (tree / "slow_impl" / "train.py").read_text()
    assert train.count("for _ in range(3):") == 1 and "pt_impl" not in train
    command = [sys.executable, "-m", "slow_impl", "--max-steps", "3", "--run-dir", str(tmp_path / "run")]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["implementation"] == "slow"


def test_constants_of_turns_are_changed(tmp_path):
    command = Way(("--help",), constants={"TURN_SECONDS": 9.0}).command(tmp_path, "")
    command[-1] = command[-1].replace("runpy.run_path('compare.py', run_name='__main__')", "print(turns.TURN_SECONDS)")
    assert subprocess.run(command, capture_output=True, check=True, text=True).stdout == "9.0\n"
