"""Efficiency: each implementation's images per second over those of a bare loop of its framework.

The bare loop takes the same training step over one batch that is already in memory as the network's input, with
the same threads and the same processes: what the framework gives when nothing stands around the step.

    python -m benchmarks.limit --data-dir DIR
"""

from typing import Literal

from pydantic import Field
from rich.console import Console

from benchmarks.paired import BenchmarkConfig, Pair, Program, make_folder, measure, report
from common.cli import parse_options
from common.config import TrainConfig
from common.errors import whole_program

Task = Literal["lenet-mnist", "cnn-digits"]
# What is to be reached: the issue of speed names these figures for two CPU cores.
TASKS = {
    "lenet-mnist": {"dataset": "mnist", "model": "lenet", "batch_size": 128, "epochs": 1, "max_steps": 300},
    "cnn-digits": {"dataset": "digits", "model": "cnn", "batch_size": 32, "epochs": 40},
}
REACH = {
    "lenet-mnist": [Pair("tf", "tf bare", 0.95), Pair("pt", "pt bare", 0.95), Pair("ptl", "pt", 0.95)],
    "cnn-digits": [Pair("tf", "tf bare", 0.85), Pair("pt", "pt bare", 0.85), Pair("ptl", "pt bare", 0.75)],
}


class LimitConfig(BenchmarkConfig):
    tasks: list[Task] = Field(["lenet-mnist", "cnn-digits"], min_length=1, description="what is trained")
    implementations: list[Literal["tf", "pt", "ptl"]] = Field(
        ["tf", "pt", "ptl"], min_length=1, description="which are measured; ptl is held to PyTorch's bare loop"
    )


def main() -> None:
    options = parse_options(LimitConfig, "python -m benchmarks.limit", "Measures what is lost around the step.")
    console = Console(highlight=False)
    folder = make_folder(options, "limit")
    for task in options.tasks:
        config = TrainConfig(**TASKS[task], data_dir=options.data_dir.absolute(), accelerator="cpu")
        programs = [Program(name, f"{name}_impl", config) for name in options.implementations]
        bare = [name for name in ("tf", "pt") if {name, f"{name}l"} & set(options.implementations)]
        programs += [Program(f"{name} bare", f"benchmarks.loops.{name}_bare", config) for name in bare]
        samples = measure(programs, options.rounds, folder / task, console)
        pairs = [pair for pair in REACH[task] if {pair.name, pair.reference} <= set(samples)]
        report(f"limit {task}", samples, pairs, folder, console, {"config": config.training_fields()})


if __name__ == "__main__":
    with whole_program("python -m benchmarks.limit"):
        main()
