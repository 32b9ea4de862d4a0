"""Runs programs in turns and compares their speeds in pairs of the same round, since the speed of machines drifts.

Every program takes the options of a run, and writes its speed to the folder of `--run-dir`: an implementation to
`result.json`, a loop of `benchmarks.loops` to `speed.json`.
"""

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console
from rich.table import Table

from common.platform.cli import to_arguments
from common.platform.errors import UserError, describe_signal
from common.platform.files import write_text
from common.platform.machine import REPOSITORY, describe_machine, git_state
from common.record.run_folder import new_run_dir
from common.spec.options import Mode, TrainConfig

SPEED_FILE = "speed.json"
LOG_FILE = "log.txt"
Implementation = Literal["tf", "pt", "ptl", "keras"]


class FolderConfig(BaseModel):
    """The options that all benchmarks have in common."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    output_dir: Path | None = Field(None, description="folder for runs and results; unset: a new one under results/")


class BenchmarkConfig(FolderConfig):
    """The options of benchmarks that measure speed."""

    rounds: int = Field(7, gt=0, description="rounds; each runs every program once, in rotating order")
    data_dir: Path = Field(Path("data"), description="folder of data sets, as for a run")


class ImplementationsConfig(BenchmarkConfig):
    """The options of benchmarks that measure implementations."""

    implementations: list[Implementation] = Field(
        ["tf", "pt", "ptl", "keras"], min_length=1, description="which are measured"
    )


class ModesConfig(ImplementationsConfig):
    """The options of benchmarks that measure implementations in several modes."""

    mode: list[Mode] = Field(["plain", "tuned"], min_length=1, description="the modes to measure, a row each")

    @property
    def rows(self) -> list["Row"]:
        return [Row(one, mode) for one in self.implementations for mode in self.mode]


@dataclass(frozen=True)
class Row:
    """An implementation in a mode, named as in the tables of compare.py: `pt`, `pt tuned`."""

    implementation: Implementation
    mode: Mode

    @property
    def name(self) -> str:
        return self.implementation if self.mode == "plain" else f"{self.implementation} {self.mode}"


@dataclass(frozen=True)
class Program:
    """A program to measure: `<starter> python -m <module> <arguments>` with the options of `config`."""

    name: str
    module: str
    config: TrainConfig
    arguments: tuple[str, ...] = ()
    starter: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pair:
    """The ratio of `name` to `reference` in the same round, and its target.

    Attributes:
      reference: None for the samples of `name` themselves.
    """

    name: str
    reference: str | None
    at_least: float | None = None

    @property
    def title(self) -> str:
        return f"{self.name} / {self.reference}" if self.reference else self.name

    def values(self, samples: dict[str, list[float]]) -> list[float]:
        """One value for each round."""
        if self.reference is None:
            return samples[self.name]
        return [one / other for one, other in zip(samples[self.name], samples[self.reference], strict=True)]


Samples = dict[str, list[float]]


def measure(
    programs: Sequence[Program], rounds: int, folder: Path, console: Console, what: str = "images_per_second"
) -> Samples:
    """Runs the programs; returns the samples of `what` that each has measured, one for each round.

    Raises:
      UserError: a program fails; the message names its log.
    """
    samples: Samples = {program.name: [] for program in programs}
    for number in range(rounds):
        shift = number % len(programs)
        for program in [*programs[shift:], *programs[:shift]]:
            run_dir = folder / f"round-{number + 1}" / program.name.replace(" ", "-")
            samples[program.name].append(run(program, run_dir)[what])
            shown = _shown(samples[program.name][-1])
            console.print(f"round {number + 1}/{rounds}: {program.name} {what.replace('_', ' ')} {shown}")
    return samples


def run(program: Program, run_dir: Path) -> dict[str, Any]:
    """Runs a program to its end; returns the results that it has written, and `process_seconds`."""
    run_dir.mkdir(parents=True)
    config = program.config.replace(run_dir=run_dir.absolute())
    command = [*program.starter, sys.executable, "-m"]
    if program.module.startswith("benchmarks.loops.pt_") and config.devices not in (1, "auto"):
        # Workers that pt_impl started by itself would lack what the loop has changed in it.
        command += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(config.devices), "-m"]
        config = config.replace(devices="auto")
    command += [program.module, *program.arguments, *to_arguments(config)]
    started = time.perf_counter()
    with open(run_dir / LOG_FILE, "w") as log:
        status = subprocess.run(command, cwd=REPOSITORY, stdout=log, stderr=log, check=False).returncode
    if status:
        ended = f"with status {status}" if status > 0 else f"by {describe_signal(-status)}"
        raise UserError(f"{program.name}: ended {ended}; see {run_dir / LOG_FILE}: {shlex.join(command)}")
    path = run_dir / SPEED_FILE
    found: dict[str, Any] = json.loads((path if path.exists() else run_dir / "result.json").read_text())
    return found | {"process_seconds": time.perf_counter() - started}


def write_speed(run_dir: Path | None, **values: float) -> None:
    """Writes what a loop has measured to its run folder: `images_per_second` and other values."""
    assert run_dir is not None
    write_text(run_dir / SPEED_FILE, json.dumps(values) + "\n")


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3f}"


def report(
    title: str, what: str, samples: Samples, pairs: Sequence[Pair], folder: Path, console: Console, more: dict[str, Any]
) -> None:
    """Prints medians with the middle half of the samples, and writes all samples to `<title>.json`."""
    table = Table(title=title, box=None)
    for heading, side in (("", "left"), ("median", "right"), ("middle half", "right"), ("reach", "right")):
        table.add_column(heading, justify=side)  # type: ignore[arg-type]
    shown = []
    alone = {pair.name for pair in pairs if pair.reference is None}
    for pair in [*(Pair(name, None) for name in samples if name not in alone), *pairs]:
        values = pair.values(samples)
        low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
        reach = "" if pair.at_least is None else f">= {pair.at_least} {'yes' if median >= pair.at_least else 'NO'}"
        title_shown = pair.title if pair.reference else f"{pair.name}, {what.replace('_', ' ')}"
        table.add_row(title_shown, _shown(median), f"{_shown(low)}-{_shown(high)}", reach)
        shown.append({**vars(pair), "values": values, "median": float(median)})
    console.print(table)
    write_document(title, folder, console, {"measured": what, "samples": samples, "pairs": shown, **more})


def write_document(title: str, folder: Path, console: Console, found: dict[str, Any]) -> None:
    """Writes the results, with the command, the machine and the commit, to `<title>.json`, and prints its path."""
    document = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]]),
        "machine": describe_machine().model_dump(),
        "git": git_state(),
        **found,
    }
    path = folder / f"{title.replace(' ', '-')}.json"
    write_text(path, json.dumps(document, indent=2) + "\n")
    console.print(f"results: {path}")


def make_folder(config: FolderConfig, name: str) -> Path:
    """The folder for all that a benchmark writes. Raises UserError if it is not empty."""
    folder = config.output_dir or new_run_dir(name, Path("results"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise UserError(f"--output-dir {folder}: is not empty")
    return folder
