"""Benchmarks: ratios and tables of made-up runs, and short runs of them."""

import json
import subprocess
import sys

import pandas as pd
import pytest
from conftest import IMPLEMENTATIONS, run
from rich.console import Console

from benchmarks import gpu, paired, repeat
from benchmarks.paired import measure
from common.platform.cli import parse_options
from common.spec.options import TrainConfig
from comparison.plan.jobs import Contender
from comparison.plan.options import CompareConfig
from comparison.prepare import prepare_comparison


def test_rows_run_in_rotating_order_and_their_ratios_are_stored(tmp_path, monkeypatch, capsys):
    order = []

    def fake(kind, implementation, config):
        order.append(config.run_dir.relative_to(tmp_path / "speed"))
        return {"ratio": 2 + len(order) / 100, "images_per_second": 100.0}

    monkeypatch.setattr(paired, "run", fake)
    rows = [Contender("pt", "plain"), Contender("pt", "tuned"), Contender("tf", "plain")]
    measure("limit", "speed", dict.fromkeys(rows, TrainConfig()), 3, tmp_path)
    assert [path.name for path in order] == ["pt", "pt-tuned", "tf", "pt-tuned", "tf", "pt", "tf", "pt", "pt-tuned"]
    assert len(set(order)) == 9
    stored = json.loads((tmp_path / "speed.json").read_text())
    assert [sample["ratio"] for sample in stored["samples"]["pt"]] == [2.01, 2.06, 2.08]
    low, high = stored["intervals"]["pt"]
    assert 1.8 < low < 2.06 < high < 2.4 and stored["machine"]["cores"] > 0
    (line,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.split()[:2] == ["pt", "2.060"]]
    assert line[2:] == ["2.035-2.070", f"{low:.3f}-{high:.3f}", "100"]


def test_the_comparisons_of_the_gpu_page_can_begin(tmp_path):
    """As far as can be seen without a GPU: no option or network is refused."""
    options = gpu.GpuConfig(accelerator="cpu", implementations=["pt"])
    comparisons = [name for name, part in gpu.PARTS.items() if part.command.startswith("compare.py")]
    for name in set(comparisons) - {"mnist-99", "cifar10-94"}:  # whose data sets may not be there
        words = gpu.arguments(name, options, tmp_path)
        prepare_comparison(parse_options(CompareConfig, "compare.py", "", words[1:]), Console(quiet=True))


def test_ratios_of_repeated_comparisons_and_their_verdicts_are_counted():
    columns = ["ratio", "ratio_low", "ratio_high", "verdict"]
    unknown = (None, None, None, None)
    rows = [(1.0, 0.9, 1.1, "no difference shown"), (1.2, 1.15, 1.25, "faster"), unknown, (1.1, 1.05, 1.2, "faster")]
    assert repeat.spread(pd.DataFrame(rows, columns=columns)) == ["4", "1.100", "9.1%", "6.9%", "2/3", "2", "0"]


@pytest.mark.slow
def test_a_copy_is_another_implementation(tmp_path):
    repeat.make_copy("pt", tmp_path / "tree")
    assert "pt_impl" not in (tmp_path / "tree" / "pt2_impl" / "train.py").read_text()
    command = [sys.executable, "-m", "pt2_impl", "--max-steps", "3", "--run-dir", str(tmp_path / "run")]
    subprocess.run(command, cwd=tmp_path / "tree", check=True, capture_output=True)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["implementation"] == "pt2"


@pytest.mark.slow
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("mode", ["plain", "tuned"])
def test_a_run_beside_its_bare_loop(tmp_path, implementation, mode):
    config = TrainConfig(epochs=4, accelerator="cpu", mode=mode, precision="32", compile=False)
    found = paired.run("limit", implementation, config.replace(run_dir=tmp_path / "run"))
    assert found["ratio"] > 0 and found["images_per_second"] > 0  # beside other programs it may be any


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_mode_tutorial_is_as_fast_as_independent_programs(tmp_path, data_dir):
    options = ("--data-dir", data_dir, "--rounds", 3, "--output-dir", tmp_path / "u")
    run(sys.executable, "-m", "benchmarks.usual", *options, timeout=1800)
    intervals = json.loads((tmp_path / "u" / "usual.json").read_text())["intervals"]
    assert [name.split()[0] for name in intervals] == [*IMPLEMENTATIONS]
    for name, (low, high) in intervals.items():  # on a busy machine the intervals are wider
        assert low <= 1.05 and high >= 0.95, name
