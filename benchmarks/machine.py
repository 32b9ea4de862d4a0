"""The machine's peak: the fastest matrix products in each precision, and the speed of runs as a share of it.

A training step is counted as three forward passes, since the backward pass counts as two: gradients of inputs and of
weights. The operations of a forward pass come from the model's specification.

    python -m benchmarks.machine [--comparison DIR]
"""

from pathlib import Path

import numpy as np
from pydantic import Field
from rich.console import Console
from rich.table import Table

from benchmarks.paired import BenchmarkConfig, Program, Row, make_folder, run, write_document
from common.platform.cli import parse_options
from common.platform.program import as_program
from common.record.results import RunResult, read_result
from common.spec.options import TrainConfig

PASSES = 3
LOOPS = {"tf": "tf_matmul", "pt": "pt_matmul"}


class MachineConfig(BenchmarkConfig):
    comparison: Path | None = Field(None, description="folder of a comparison whose runs are set against the peak")


def share_of_peak(result: RunResult, peaks: dict[str, float]) -> float | None:
    """A run's operations per second divided by those of the fastest product in its precision; None without steps."""
    if result.images_per_second is None:
        return None
    peak = peaks[result.config.precision.removesuffix("-mixed")]
    if result.accelerator == "gpu":  # each GPU has its own peak; CPU devices share the cores
        peak *= result.devices
    return PASSES * result.flops_per_image * result.images_per_second / peak


def main() -> None:
    options = parse_options(MachineConfig, "python -m benchmarks.machine", "Measures matrix products.")
    console = Console(highlight=False)
    folder = make_folder(options, "machine")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in LOOPS}
    for number in range(options.rounds):
        for name, loop in LOOPS.items():
            program = Program(f"{name} matmul", f"benchmarks.loops.{loop}", TrainConfig(devices=1))
            found[name].append(run(program, folder / f"round-{number + 1}" / name))
    table = Table(title="matrix products, GFLOP/s, best of all rounds", box=None)
    precisions = ("64", "32", "bf16", "16")
    for heading in ("", *precisions):
        table.add_column(heading, justify="right")
    best = {name: {one: max(sample[one] for sample in found[name]) for one in precisions} for name in LOOPS}
    for name, values in best.items():
        table.add_row(name, *(f"{values[one] / 1e9:,.1f}" for one in precisions))
    console.print(table)
    shares: dict[str, list[float]] = {}
    if options.comparison:
        for path in sorted(options.comparison.glob("runs/**/result.json")):
            result = read_result(path.parent)
            share = share_of_peak(result, best["tf" if result.implementation in ("tf", "keras") else "pt"])
            if share is not None:
                row = Row(result.implementation, result.config.mode)
                shares.setdefault(f"{row.name} {result.config.precision}", []).append(share)
        for name, ones in shares.items():
            console.print(f"{name}: {np.median(ones):.1%} of the peak of its precision")
    write_document("machine", folder, console, {"flops_per_second": best, "shares_of_peak": shares})


if __name__ == "__main__":
    with as_program("python -m benchmarks.machine"):
        main()
