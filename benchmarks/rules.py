"""Update rules: how far a training with Keras's own rules departs from one with the shared rules.

All runs are in 64 bits, so that a difference comes from the rule. PyTorch's own rules are the shared ones. TensorFlow
with the shared rules is in the table to show how small the differences are that come from rounding.

    python -m benchmarks.rules
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.paired import FolderConfig, Program, make_folder, run, write_document
from common.platform.cli import parse_options
from common.platform.program import as_program
from common.record.results import read_step_losses
from common.spec.options import TrainConfig
from common.spec.rules import RULES

Losses = NDArray[np.float64]  # of every step
STEPS = (2, 10, 100)
WAYS = {
    "shared rule": ("tf_impl", ()),
    "Keras's, its numbers": ("benchmarks.loops.tf_own_rule", ("defaults",)),
    "Keras's, PyTorch's numbers": ("benchmarks.loops.tf_own_rule", ("same",)),
}


def main() -> None:
    options = parse_options(FolderConfig, "python -m benchmarks.rules", "Compares update rules.")
    console = Console(highlight=False)
    folder = make_folder(options, "rules")
    table = Table(title="largest relative difference of a loss from PyTorch's, up to step", box=None)
    for heading in ("rule", "", *map(str, STEPS)):
        table.add_column(heading, justify="left" if heading in ("rule", "") else "right")
    found: dict[str, dict[str, list[float]]] = {}
    for rule in RULES:
        config = TrainConfig(optimizer=rule, max_steps=max(STEPS), precision="64", accelerator="cpu")
        reference = losses(Program("pt", "pt_impl", config), folder / rule)
        found[rule] = {}
        for way, (module, arguments) in WAYS.items():
            other = losses(Program(way, module, config, arguments), folder / rule)
            found[rule][way] = largest_differences(reference, other, STEPS)
            table.add_row(rule, way, *(f"{value:.0e}" for value in found[rule][way]))
    console.print(table)
    write_document("rules", folder, console, {"steps": STEPS, "largest_relative_differences": found})


def losses(program: Program, folder: Path) -> Losses:
    """Runs a program; returns the loss of every step."""
    run_dir = folder / program.name.replace(" ", "-").replace("'", "")
    run(program, run_dir)
    return np.array(read_step_losses(run_dir))


def largest_differences(reference: Losses, other: Losses, steps: Sequence[int]) -> list[float]:
    """The largest relative difference of a loss up to each of `steps`."""
    apart = np.abs(other - reference) / reference
    return [float(apart[:step].max()) for step in steps]


if __name__ == "__main__":
    with as_program("python -m benchmarks.rules"):
        main()
