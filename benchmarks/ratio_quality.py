"""How good compare.py's ratios are: repeats comparisons, also beside busy programs, and looks at their intervals.

repeat: the same comparison again and again: width of its intervals, and how many contain the median of all estimates
old-way: the same with `--turns never`: how much wider its intervals are than those of `repeat`
busy: the same beside a busy loop that comes and goes: the ratio over the median of `repeat`
truth: PyTorch against a copy of itself: how often a difference is claimed; every second time beside such a loop
sensitivity: PyTorch against a copy with 5 % more work in each step: how often it is found to be slower
processes: how much the speeds of fresh processes of the same program differ, and what changes that
length: the ratio in shorter and longer turns
waking: seconds of the first steps after waking up, over those of a usual step
alone: images per second in turns, over those alone

All train on the digits. `--output-dir` of an earlier call continues it: its comparisons count, too.

    python -m benchmarks.ratio_quality --experiments repeat truth --comparisons 20
"""

import json
import math
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field
from rich.console import Console

from benchmarks.paired import FolderConfig, Pair, TimedProgram, make_table, measure_in_turns, write_document
from common.platform.cli import parse_options
from common.platform.ending import as_program, signals_as_ctrl_c
from common.platform.errors import UserError
from common.platform.files import write_text
from common.platform.machine import REPOSITORY
from common.record.results import TurnLine, read_metrics
from common.record.run_folder import new_run_dir
from common.spec.options import TrainConfig
from comparison import Comparison, load
from comparison.ratios import typical_speed
from comparison.run.load_meter import load_disturbs

Experiment = Literal["repeat", "old-way", "busy", "truth", "sensitivity", "processes", "length", "waking", "alone"]
Found = dict[str, Any]

ALL = ("--implementations", "tf", "pt", "ptl")
REPEATED = (*ALL, "--repeats", "4")
TWO = ("--implementations", "tf", "pt")
COMES_AND_GOES = """
import time
while True:
    end = time.monotonic() + 3
    while time.monotonic() < end: pass
    time.sleep(3)
"""
SAME = 0.03  # of a ratio of equals
MORE_WORK = 0.05
# Times `PRODUCTS` products of matrices in the copy that does more work.
PRODUCT = "torch.mm(EXTRA, EXTRA)"
MATRIX = "EXTRA = torch.full((64, 64), 0.1)"
TIME_PRODUCT = f"""
import time, torch
{MATRIX}
seconds = []
for _ in range(2000):
    start = time.perf_counter()
    {PRODUCT}
    seconds.append(time.perf_counter() - start)
print(sorted(seconds)[200])
"""
# Ways to start processes of the same program: the implementation, words before the interpreter, options of the run.
FRESH: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "pt": ("pt", (), {}),
    "pt, no address randomisation": ("pt", ("setarch", "--addr-no-randomize"), {}),
    "pt, huge pages": ("pt", ("env", "GLIBC_TUNABLES=glibc.malloc.hugetlb=1"), {}),
    "pt, threads bound to cores": ("pt", ("env", "OMP_PROC_BIND=true"), {}),
    "pt, one thread": ("pt", (), {"threads_per_device": 1}),
    "ptl": ("ptl", (), {}),
    "tf": ("tf", (), {}),
    "tf, no address randomisation": ("tf", ("setarch", "--addr-no-randomize"), {}),
    "tf, one thread": ("tf", (), {"threads_per_device": 1}),
}
PROCESSES = 8  # alive together
WAKING_STEPS = (0, 1, 2, 3, 5)
TURN_SECONDS = (0.1, 0.2, 0.5, 1.0)


class TurnsConfig(FolderConfig):
    """`python -m benchmarks.ratio_quality --help` prints all options."""

    experiments: list[Experiment] = Field(
        ["repeat", "old-way", "busy", "truth", "sensitivity", "processes", "length", "waking", "alone"],
        min_length=1,
        description="what is measured",
    )
    comparisons: int = Field(
        10, ge=0, description="comparisons of each experiment to make now; its ways of comparing alternate"
    )
    pause: float = Field(0.0, ge=0, description="seconds between two comparisons")
    options: str = Field("", description='further options for compare.py, in one text: --options="--repeats 3"')


@dataclass(frozen=True)
class Way:
    """How compare.py is called.

    Attributes:
      tree: folder of the code.
      beside: a Python program that runs meanwhile.
      constants: new values of constants of comparison/run/turns.py.
    """

    arguments: tuple[str, ...]
    tree: Path = REPOSITORY
    beside: str | None = None
    constants: Mapping[str, float] = field(default_factory=dict)

    def command(self, folder: Path, options: str) -> list[str]:
        arguments = ["compare.py", *self.arguments, *shlex.split(options), "--output-dir", str(folder)]
        if not self.constants:
            return [sys.executable, *arguments]
        patched = f"from comparison.run import turns; vars(turns).update({dict(self.constants)})"
        started = f"import runpy, sys; sys.argv = {arguments}; runpy.run_path('compare.py', run_name='__main__')"
        return [sys.executable, "-c", f"{patched}\n{started}"]


@dataclass(frozen=True)
class Sample:
    """A comparison that has ended. `seconds`: of the whole command."""

    folder: Path
    seconds: float

    @cached_property
    def comparison(self) -> Comparison:
        return load(self.folder)

    def row(self, implementation: str, mode: str = "plain") -> "pd.Series[Any]":
        rows = self.comparison.rows
        return rows[(rows["implementation"] == implementation) & (rows["mode"] == mode)].iloc[0]

    def ratio(self, implementation: str) -> float:
        """The estimate; NaN if there is none."""
        return float(self.row(implementation)["ratio"])

    def half_width(self, implementation: str) -> float:
        """Of the interval, as a share of the ratio; NaN if there is no interval."""
        row = self.row(implementation)
        return math.sqrt(row["ratio_high"] / row["ratio_low"]) - 1

    def images_per_second_of_turns(self, implementation: str, mode: str) -> float:
        """Of all turns of the median run that no other program has disturbed."""
        turns = self.comparison.turns
        busy = [load_disturbs(*loads) for loads in zip(turns["other_load"], turns["own_load"], strict=True)]
        of_row = turns[(turns["implementation"] == implementation) & (turns["mode"] == mode) & ~np.array(busy)]
        sums = of_row.groupby("run_dir")[["images", "seconds"]].sum()
        return float((sums["images"] / sums["seconds"]).median())

    def verdict(self, implementation: str) -> str | None:
        verdict = self.row(implementation)["verdict"]
        return None if pd.isna(verdict) else str(verdict)


Samples = dict[str, list[Sample]]  # name of a way -> its comparisons


@dataclass(frozen=True)
class Maker:
    """Makes comparisons, each in a folder of its own: `<folder>/<experiment>/<number>-<way>`."""

    folder: Path
    options: TurnsConfig
    console: Console

    def make(self, experiment: Experiment, ways: Mapping[str, Way]) -> Samples:
        """Makes the comparisons that the options ask for; returns all that have been made, by the name of their way."""
        folder, names = self.folder.absolute() / experiment, list(ways)
        earlier = len([*folder.glob("*.log")])
        for number in range(earlier, earlier + self.options.comparisons):
            time.sleep(self.options.pause if number > earlier else 0)
            name = names[number % len(names)]
            seconds = self.compare(folder / f"{number + 1:03}-{name}", ways[name])
            self.console.print(f"{experiment} {number + 1}, {name}: {seconds:.0f} s")
        return {name: self.made(experiment, name) for name in names}

    def made(self, experiment: Experiment, name: str) -> list[Sample]:
        """The comparisons of this and of earlier calls."""
        return [
            Sample(path.with_suffix(""), json.loads(path.read_text())["seconds"])
            for path in sorted((self.folder.absolute() / experiment).glob(f"*-{name}.json"))
        ]

    def compare(self, folder: Path, way: Way) -> float:
        """Runs compare.py; returns its seconds, which it also writes beside the comparison's folder."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        log_path = Path(f"{folder}.log")
        start = time.perf_counter()
        with open(log_path, "w") as log, program_beside(way.beside):
            command = way.command(folder, self.options.options)
            status = subprocess.run(command, cwd=way.tree, stdout=log, stderr=log, check=False).returncode
        seconds = time.perf_counter() - start
        if status:
            raise UserError(f"compare.py: ended with status {status}; see {log_path}")
        write_text(Path(f"{folder}.json"), json.dumps({"seconds": seconds}) + "\n")
        return seconds

    def copy(self, name: str, products: int = 0) -> Path:
        """A copy of the code with one more implementation, `name`: PyTorch's, with `products` more in each step."""
        tree = self.folder.absolute() / f"tree-{name}"
        if tree.exists():
            return tree
        made = tree.with_suffix(".part")
        shutil.rmtree(made, ignore_errors=True)
        for path in (*REPOSITORY.glob("*_impl"), REPOSITORY / "common", REPOSITORY / "comparison"):
            shutil.copytree(path, made / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(REPOSITORY / "compare.py", made)
        shutil.copytree(made / "pt_impl", made / f"{name}_impl")
        for path in (made / f"{name}_impl").glob("*.py"):
            text = re.sub(r"\bpt_impl\b", f"{name}_impl", path.read_text()).replace('"pt"', f'"{name}"')
            if path.name == "train.py" and products:
                step = "            recorder.step(*shares)\n"
                assert text.count(step) == 1
                more = f"            for _ in range({products}):\n                {PRODUCT}\n"
                text = text.replace(step, more + step).replace("\nShares =", f"\n{MATRIX}\nShares =", 1)
            path.write_text(text)
        registry = made / "common" / "implementations.py"
        registry.write_text(registry.read_text() + f'IMPLEMENTATIONS["{name}"] = IMPLEMENTATIONS["pt"]\n')
        made.rename(tree)
        return tree


@contextmanager
def program_beside(text: str | None) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", text]) if text else None
    try:
        yield
    finally:
        if process:
            process.kill()
            process.wait()


# --- Experiments: each prints what it finds, and returns it with all samples ---


def repeat(maker: Maker) -> Found:
    samples = maker.make("repeat", {"turns": Way(REPEATED)})["turns"]
    headings = ("comparisons", "median", "intervals with it", "half-width", "standard deviation")
    table = make_table("the same comparison", "", *headings)
    figures: Found = {"seconds": [sample.seconds for sample in samples]}
    for name in ("pt", "ptl"):
        rows = [sample.row(name) for sample in samples if not math.isnan(sample.ratio(name))]
        figures[name] = [[float(row[column]) for column in ("ratio", "ratio_low", "ratio_high")] for row in rows]
        median = middle([ratio for ratio, _, _ in figures[name]])
        inside = sum(low <= median <= high for _, low, high in figures[name])
        width = middle([sample.half_width(name) for sample in samples])
        deviation = (
            float(np.std(np.log([ratio for ratio, _, _ in figures[name]]), ddof=1)) if len(rows) > 1 else math.nan
        )
        table.add_row(
            f"{name} / tf",
            str(len(samples)),
            f"{median:.3f}",
            f"{inside}/{len(rows)}",
            f"{width:.1%}",
            f"{deviation:.1%}",
        )
    maker.console.print(table)
    maker.console.print(f"seconds of compare.py: median {middle(figures['seconds']):.0f}")
    return figures


def old_way(maker: Maker) -> Found:
    never = maker.make("old-way", {"never": Way((*REPEATED, "--turns", "never"))})["never"]
    samples = {"in turns": maker.made("repeat", "turns"), "--turns never": never}
    table = make_table("half-width of the interval", "", "comparisons", "seconds", "pt / tf", "ptl / tf")
    figures: Found = {}
    for name, of_way in samples.items():
        figures[name] = {row: [sample.half_width(row) for sample in of_way] for row in ("pt", "ptl")}
        seconds = middle([sample.seconds for sample in of_way])
        table.add_row(
            name, str(len(of_way)), f"{seconds:.0f}", *(f"{middle(of_row):.1%}" for of_row in figures[name].values())
        )
    maker.console.print(table)
    for row in ("pt", "ptl"):
        times = middle(figures["--turns never"][row]) / middle(figures["in turns"][row])
        maker.console.print(f"{row} / tf: in turns the interval is {times:.1f} times as narrow")
    return figures


def busy(maker: Maker) -> Found:
    samples = maker.make("busy", {"busy": Way(REPEATED, beside=COMES_AND_GOES)})["busy"]
    quiet = maker.made("repeat", "turns")
    figures: Found = {"no_verdict": [sample.comparison.warnings for sample in samples if sample.verdict("pt") is None]}
    for name in ("pt", "ptl"):
        usual = middle([result.ratio(name) for result in quiet])
        figures[name] = [sample.ratio(name) / usual for sample in samples]
        shown = ", ".join(f"{ratio:.3f}" for ratio in figures[name])
        maker.console.print(f"{name} / tf beside a busy loop, over the median without it: {shown}")
    for warnings in figures["no_verdict"]:
        maker.console.print(f"no verdict: {' '.join(warnings)}")
    return figures


def truth(maker: Maker) -> Found:
    way = Way(("--implementations", "pt", "pt2"), maker.copy("pt2"))
    samples = maker.make("truth", {"quiet": way, "busy": Way(way.arguments, way.tree, COMES_AND_GOES)})
    table = make_table("PyTorch against itself", "", "comparisons", "wrong", "no verdict", f"within {SAME:.0%}")
    figures: Found = {}
    for name, of_way in samples.items():
        verdicts, ratios = [sample.verdict("pt2") for sample in of_way], [sample.ratio("pt2") for sample in of_way]
        figures[name] = {"verdicts": verdicts, "ratios": ratios}
        wrong = sum(verdict in ("faster", "slower") for verdict in verdicts)
        close = np.mean([float(abs(ratio - 1) <= SAME) for ratio in ratios if not math.isnan(ratio)] or [math.nan])
        table.add_row(name, str(len(of_way)), str(wrong), str(verdicts.count(None)), f"{close:.0%}")
    maker.console.print(table)
    return figures


def sensitivity(maker: Maker) -> Found:
    number = calibrate(maker)
    arguments = ("--implementations", "pt", "slow", "--ratio-within", "2%", "--repeats", "10")
    samples = maker.make("sensitivity", {"turns": Way(arguments, maker.copy("slow", number))})["turns"]
    verdicts, ratios = [sample.verdict("slow") for sample in samples], [sample.ratio("slow") for sample in samples]
    maker.console.print(
        f"{MORE_WORK:.0%} more work, {number} products of matrices a step: slower in {verdicts.count('slower')} of"
        f" {len(samples)} comparisons; median ratio {middle(ratios):.3f}"
    )
    return {"products": number, "verdicts": verdicts, "ratios": ratios}


def calibrate(maker: Maker) -> int:
    """The number of products that take MORE_WORK of PyTorch's step; measured once for an output folder.

    Both times are 10 % quantiles, since other programs only make them longer.
    """
    path = maker.folder / "products.json"
    if not path.exists():
        with tempfile.TemporaryDirectory() as folder:
            maker.compare(Path(folder) / "calibration", Way(("--implementations", "pt", "ptl", "--verify", "never")))
            turns = load(Path(folder) / "calibration").turns
        product = float(subprocess.run([sys.executable, "-c", TIME_PRODUCT], capture_output=True, check=True).stdout)
        step = step_seconds(turns[turns["implementation"] == "pt"], 0.1)
        write_text(path, json.dumps(max(1, round(MORE_WORK * step / product))) + "\n")
    return int(json.loads(path.read_text()))


def processes(maker: Maker) -> Found:
    """Each call makes new processes; only these count."""
    folder = maker.folder / "processes"
    folder = folder / f"{len([*folder.glob('*')]) + 1:03}"
    table = make_table(f"speeds of {PROCESSES} processes", "", "standard deviation", "least", "most")
    figures: Found = {}
    for name, (implementation, starter, options) in FRESH.items():
        config = TrainConfig(accelerator="cpu", epochs=80, **options)
        names = [f"{name} {number}" for number in range(PROCESSES)]
        programs = [TimedProgram(row_name, f"{implementation}_impl", config, starter=starter) for row_name in names]
        pairs = [Pair(row_name, names[0]) for row_name in names[1:]]  # so that all are alive together
        run_dirs = measure_in_turns(programs, pairs, 1, folder, Console(quiet=True))
        turns = [read_metrics(run_dirs[row_name][0], TurnLine) for row_name in names]
        speeds = np.array([[turn.images_per_second for turn in of_process] for of_process in turns])
        figures[name] = [typical_speed(of_process) for of_process in speeds / np.median(speeds, axis=0)]
        deviation = deviation_between(speeds)
        table.add_row(name, f"{deviation:.1%}", f"{min(figures[name]):.3f}", f"{max(figures[name]):.3f}")
    maker.console.print(table)
    return figures


def deviation_between(speeds: NDArray[np.float64]) -> float:
    """Standard deviation of the logarithms of processes' speeds, without the noise of their turns.

    It is the square root of the covariance between the first and the second half of the turns: what a process has in
    both belongs to the process.

    Args:
      speeds: (processes, turns); turns of the same column followed each other.
    """
    relative = speeds / np.median(speeds, axis=0)
    halves = [
        np.log([typical_speed(of_process) for of_process in half]) for half in np.array_split(relative, 2, axis=1)
    ]
    return math.sqrt(max(0.0, float(np.cov(halves[0], halves[1])[0, 1])))


def length(maker: Maker) -> Found:
    arguments = (*TWO, "--epochs", "400")
    ways = {f"{seconds}": Way(arguments, constants={"TURN_SECONDS": seconds}) for seconds in TURN_SECONDS}
    figures: Found = {}
    for name, samples in maker.make("length", ways).items():
        figures[name] = [sample.ratio("pt") for sample in samples]
        maker.console.print(f"pt / tf in turns of {name} s: median {middle(figures[name]):.3f}")
    return figures


def waking(maker: Maker) -> Found:
    """A turn times one step after k steps of waking up, so its seconds are those of step k + 1."""
    arguments = (*ALL, "--mode", "plain", "tuned")
    constants = {f"{steps}": {"WAKING_STEPS": steps, "TURN_SECONDS": 1e-9, "LONGEST": 0.0} for steps in WAKING_STEPS}
    ways = {name: Way(arguments, constants=values) for name, values in constants.items()} | {"usual": Way(arguments)}
    table = make_table("seconds of a step, over a usual one", "", *(f"step {steps + 1}" for steps in WAKING_STEPS))
    figures: Found = {}
    for name, samples in maker.make("waking", ways).items():
        for turns in (sample.comparison.turns for sample in samples):
            for (implementation, mode), of_row in turns.groupby(["implementation", "mode"]):
                of_way = figures.setdefault(f"{implementation} {mode}", {}).setdefault(name, [])
                of_way.append(step_seconds(of_row))
    for row, by_way in figures.items():
        usual = middle(by_way.get("usual", []))
        table.add_row(row, *(f"{middle(by_way.get(str(steps), [])) / usual:.2f}" for steps in WAKING_STEPS))
    maker.console.print(table)
    return {"step_seconds": figures}


def alone(maker: Maker) -> Found:
    """Speeds of whole trainings, with stalls: images per second of usual turns would leave them out in turns only."""
    rows = ("--implementations", "tf", "keras", "pt", "ptl", "--mode", "plain", "tuned", "--epochs", "80")
    ways: dict[str, Way] = {}
    for devices in ("1", "2"):
        arguments = (*rows, "--devices", devices, "--threads-per-device", "1") if devices == "2" else rows
        ways |= {f"turns-{devices}": Way(arguments), f"alone-{devices}": Way((*arguments, "--turns", "never"))}
    samples = maker.make("alone", ways)
    table = make_table("images per second in turns / alone", "", "1 device", "2 devices")
    figures: Found = {}
    for implementation in ("tf", "keras", "pt", "ptl"):
        for mode in ("plain", "tuned"):
            figures[f"{implementation} {mode}"] = ratios = {
                devices: [
                    in_turns.images_per_second_of_turns(implementation, mode)
                    / other.row(implementation, mode)["images_per_second"]
                    for in_turns, other in zip(samples[f"turns-{devices}"], samples[f"alone-{devices}"], strict=False)
                ]
                for devices in ("1", "2")
            }
            table.add_row(f"{implementation} {mode}", *(f"{middle(values):.3f}" for values in ratios.values()))
    maker.console.print(table)
    return figures


def middle(values: list[float]) -> float:
    """The median of those that are known; NaN if none is."""
    known = [value for value in values if not math.isnan(value)]
    return float(np.median(known)) if known else math.nan


def step_seconds(turns: pd.DataFrame, share: float = 0.5) -> float:
    """A quantile, by default the median, over turns of the mean seconds of their steps."""
    return float((turns["seconds"] / (turns["last_step"] - turns["first_step"] + 1)).quantile(share))


EXPERIMENTS: dict[Experiment, Callable[[Maker], Found]] = {
    "repeat": repeat,
    "old-way": old_way,
    "busy": busy,
    "truth": truth,
    "sensitivity": sensitivity,
    "processes": processes,
    "length": length,
    "waking": waking,
    "alone": alone,
}


def main() -> None:
    options = parse_options(
        TurnsConfig, "python -m benchmarks.ratio_quality", "Measures how good compare.py's ratios are."
    )
    console = Console(highlight=False)
    folder = options.output_dir or new_run_dir("turns", Path("results"))
    folder.mkdir(parents=True, exist_ok=True)
    maker = Maker(folder, options, console)
    for experiment in options.experiments:
        write_document(experiment, folder, console, EXPERIMENTS[experiment](maker))


if __name__ == "__main__":
    with as_program("python -m benchmarks.ratio_quality"):
        signals_as_ctrl_c()
        main()
