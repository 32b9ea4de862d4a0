"""Measures implementations in turns with another loop of their framework (within_a_run.py), and reports the ratios."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, Field
from rich.console import Console
from rich.table import Table

from benchmarks.within_a_run import SPEED_FILE
from common.implementations import interpreter_of
from common.platform.cli import to_arguments
from common.platform.errors import UserError
from common.platform.files import write_text
from common.platform.machine import REPOSITORY, describe_machine, git_state
from common.record.run_folder import new_run_dir
from common.spec.options import TrainConfig
from comparison.plan.jobs import Contender
from comparison.ratios import paired_ratio

Implementation = Literal["tf", "keras", "pt", "ptl", "jax"]  # those with a file in benchmarks/loops
ALL: list[Implementation] = ["tf", "keras", "pt", "ptl", "jax"]
CONSOLE = Console(highlight=False)


class FolderConfig(BaseModel, frozen=True, extra="forbid"):
    output_dir: Path | None = Field(None, description="folder for runs and results; unset: a new one under results/")


class PairedConfig(FolderConfig):
    data_dir: Path = Field(Path("data"), description="folder of data sets, as for a run")
    implementations: list[Implementation] = Field(ALL, min_length=1, description="which are measured")
    rounds: int = Field(7, gt=0, description="rounds; each has one run of every row")


def measure(kind: str, title: str, configs: dict[Contender, TrainConfig], rounds: int, folder: Path) -> None:
    """Makes the runs of all rows; prints the ratios of their speeds to that of the other loop, and writes `TITLE.json`.

    Raises:
      UserError: a run fails; the message names its log.
    """
    rows = list(configs)
    samples: dict[str, list[dict[str, float]]] = {row.name: [] for row in rows}
    for number in range(rounds):
        for row in [*rows[number % len(rows) :], *rows[: number % len(rows)]]:
            run_dir = folder.absolute() / title / f"round-{number + 1}" / row.name.replace(" ", "-")
            samples[row.name].append(run(kind, row.implementation, configs[row].replace(run_dir=run_dir)))
            CONSOLE.print(f"{title}, round {number + 1}/{rounds}: {row.name} {samples[row.name][-1]['ratio']:.3f}")
    table = Table("", "ratio", "middle half", "95 % interval", "images/s", title=title, box=None)
    intervals: dict[str, Any] = {}
    for name, of_row in samples.items():
        ratios, speeds = ([sample[key] for sample in of_row] for key in ("ratio", "images_per_second"))
        low, median, high = np.quantile(ratios, [0.25, 0.5, 0.75])
        interval = paired_ratio(ratios, [1.0] * rounds)
        intervals[name] = interval.low, interval.high
        shown = "-" if interval.low is None else f"{interval.low:.3f}-{interval.high:.3f}"
        table.add_row(name, f"{median:.3f}", f"{low:.3f}-{high:.3f}", shown, f"{np.median(speeds):,.0f}")
    CONSOLE.print(table)
    document = {
        "command": sys.argv,
        "machine": describe_machine().model_dump(),
        "git": git_state(),
        "config": configs[rows[0]].training_fields(),
        "samples": samples,
        "intervals": intervals,
    }
    write_text(folder / f"{title}.json", json.dumps(document, indent=2) + "\n")
    CONSOLE.print(f"results: {folder / title}.json")


def run(kind: str, implementation: str, config: TrainConfig) -> dict[str, float]:
    """Makes one run in a process of its own; returns what it has measured."""
    assert config.run_dir is not None
    config.run_dir.parent.mkdir(parents=True, exist_ok=True)
    command = [interpreter_of(implementation), "-m", "benchmarks.within_a_run", kind, implementation]
    with open(log_path := config.run_dir.with_suffix(".log"), "w") as log:
        status = subprocess.run([*command, *to_arguments(config)], cwd=REPOSITORY, stdout=log, stderr=log).returncode
    if status:
        raise UserError(f"{implementation}: ended with status {status}; see {log_path}")
    return dict[str, float](json.loads((config.run_dir / SPEED_FILE).read_text()))


def make_folder(config: FolderConfig, name: str) -> Path:
    """The folder for all that a benchmark writes. Raises UserError if it is not empty."""
    folder = config.output_dir or new_run_dir(name, Path("results"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise UserError(f"--output-dir {folder}: is not empty")
    return folder
