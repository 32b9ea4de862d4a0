"""Efficiency: each implementation's images per second over those of a bare loop of its framework.

The bare loop takes the same training step over one batch that is already in memory as the network's input, with
the same threads and devices, in the same process, in turns with the implementation's own epochs: what the
framework gives when nothing stands around the step. PyTorch's is Lightning's limit too.

    python -m benchmarks.limit --data-dir DIR
"""

from typing import Any, Literal

from pydantic import Field
from rich.console import Console

from benchmarks.paired import BenchmarkConfig, Pair, Program, make_folder, measure, report
from common.cli import parse_options
from common.config import TrainConfig
from common.errors import whole_program

Task = Literal["lenet-mnist", "cnn-digits", "two-devices"]
MNIST = {"dataset": "mnist", "model": "lenet", "batch_size": 128, "train_size": 6400, "test_size": 1000, "epochs": 9}
TASKS: dict[Task, dict[str, Any]] = {
    "lenet-mnist": MNIST,
    "cnn-digits": {"dataset": "digits", "model": "cnn", "batch_size": 32, "epochs": 40},
    # Each with one thread; the bare loop under the same DDP or MirroredStrategy.
    "two-devices": {**MNIST, "devices": 2, "threads_per_device": 1},
}
# What is to be reached on two CPU cores.
REACH: dict[Task, dict[str, float]] = {
    "lenet-mnist": {"tf": 0.95, "pt": 0.95},
    "cnn-digits": {"tf": 0.85, "pt": 0.85, "ptl": 0.75},
    "two-devices": {"tf": 0.95, "pt": 0.95, "ptl": 0.95},
}
LIGHTNING_OVER_PYTORCH = 0.95  # on lenet-mnist


class LimitConfig(BenchmarkConfig):
    tasks: list[Task] = Field(list(TASKS), min_length=1, description="what is trained")
    implementations: list[Literal["tf", "pt", "ptl"]] = Field(
        ["tf", "pt", "ptl"], min_length=1, description="which are measured"
    )


def main() -> None:
    options = parse_options(LimitConfig, "python -m benchmarks.limit", "Measures what is lost around the step.")
    console = Console(highlight=False)
    folder = make_folder(options, "limit")
    for task in options.tasks:
        config = TrainConfig(**TASKS[task], data_dir=options.data_dir.absolute(), accelerator="cpu")
        programs = [Program(name, f"benchmarks.loops.{name}_limit", config) for name in options.implementations]
        samples = measure(programs, options.rounds, folder / task, console, "efficiency")
        pairs = [Pair(name, None, REACH[task].get(name)) for name in options.implementations]
        if task == "lenet-mnist" and {"pt", "ptl"} <= set(options.implementations):
            pairs.append(Pair("ptl", "pt", LIGHTNING_OVER_PYTORCH))
        report(f"limit {task}", "efficiency", samples, pairs, folder, console, {"config": config.training_fields()})


if __name__ == "__main__":
    with whole_program("python -m benchmarks.limit"):
        main()
