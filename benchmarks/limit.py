"""Efficiency: each implementation's images per second divided by those of a bare loop of its framework.

The bare loop takes the same training step on one batch that is already in memory as the network's input. It uses the
same threads, devices and process, and takes turns with the implementation's own epochs. Its speed is that of the
framework with nothing around the step. PyTorch's bare loop is Lightning's limit too, and TensorFlow's is Keras's.

Both modes train in 32-bit floats and are compared with the same bare loop. `--compile true` compiles all of them; on a
GPU PyTorch's bare loop is then a CUDA graph.

    python -m benchmarks.limit --data-dir DIR
"""

from typing import Any, Literal

from pydantic import Field
from rich.console import Console

from benchmarks.paired import (
    DataConfig,
    ModesConfig,
    Pair,
    RoundsConfig,
    TimedProgram,
    make_folder,
    measure,
    ratios_of_runs,
    report,
)
from common.platform.cli import parse_options
from common.platform.ending import as_program
from common.spec.options import Accelerator, TrainConfig

Task = Literal["lenet-mnist", "cnn-digits", "two-devices", "resnet18-cifar"]
MNIST = {"dataset": "mnist", "model": "lenet", "batch_size": 128, "train_size": 6400, "test_size": 1000, "epochs": 9}
TASKS: dict[Task, dict[str, Any]] = {
    "lenet-mnist": MNIST,
    "cnn-digits": {"dataset": "digits", "model": "cnn", "batch_size": 32, "epochs": 40},
    # Each device has one thread; the bare loop uses the same DDP or MirroredStrategy.
    "two-devices": {**MNIST, "devices": 2, "threads_per_device": 1},
    # Images of CIFAR-10's shape; a step takes seconds, so there are two in an epoch.
    "resnet18-cifar": {
        "dataset": "synthetic",
        "image_shape": (32, 32, 3),
        "model": "resnet18",
        "batch_size": 128,
        "train_size": 256,
        "test_size": 128,
        "epochs": 5,
    },
}
# The step itself must be the same, so that only the code around it makes a difference.
SAME_STEP: dict[str, Any] = {"precision": "32", "compile": False}
# Targets of tuned mode on two CPU cores, not compiled; plain mode has no target.
REACH: dict[Task, dict[str, float]] = {
    "lenet-mnist": {"tf tuned": 0.95, "pt tuned": 0.97, "ptl tuned": 0.95},
    "cnn-digits": {"tf tuned": 0.85, "pt tuned": 0.85, "ptl tuned": 0.75},
    "two-devices": {"tf tuned": 0.95, "pt tuned": 0.95, "ptl tuned": 0.95},
    "resnet18-cifar": {"pt tuned": 0.95, "ptl tuned": 0.95},
}
LIGHTNING_OVER_PYTORCH = 0.95  # target for the tuned modes on lenet-mnist


class LimitConfig(DataConfig, RoundsConfig, ModesConfig):
    tasks: list[Task] = Field(list(TASKS), min_length=1, description="what is trained")
    accelerator: Accelerator = Field("cpu", description="where both train")
    compile: bool = Field(False, description="compile both; on a GPU PyTorch's bare loop is one CUDA graph")


def main() -> None:
    options = parse_options(LimitConfig, "python -m benchmarks.limit", "Measures what is lost around the step.")
    console = Console(highlight=False)
    folder = make_folder(options, "limit")
    for task in options.tasks:
        config = TrainConfig(
            **TASKS[task],
            **SAME_STEP | {"compile": options.compile},
            data_dir=options.data_dir.absolute(),
            accelerator=options.accelerator,
        )
        programs = [
            TimedProgram(row.name, f"benchmarks.loops.{row.implementation}_limit", config.replace(mode=row.mode))
            for row in options.rows
        ]
        samples = measure(programs, options.rounds, folder / task, console, "efficiency")
        both = task == "lenet-mnist" and {"pt tuned", "ptl tuned"} <= set(samples)
        ratios = ratios_of_runs(samples, [Pair("ptl tuned", "pt tuned", LIGHTNING_OVER_PYTORCH)] if both else [])
        document = {"config": config.training_fields()}
        report(
            f"limit {task}",
            "efficiency",
            samples,
            ratios,
            folder,
            console,
            document,
            REACH[task] if options.accelerator == "cpu" and not options.compile else None,
        )


if __name__ == "__main__":
    with as_program("python -m benchmarks.limit"):
        main()
