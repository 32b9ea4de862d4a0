"""Efficiency: each implementation's images per second divided by those of a bare loop of its framework.

The bare loop takes the same training step on one batch that is already in memory as the network's input. Its speed is
that of the framework with nothing around the step. PyTorch's bare loop is Lightning's limit too, and TensorFlow's is
Keras's. Both modes train in 32-bit floats and are compared with the same bare loop.

    python -m benchmarks.limit --data-dir DIR
"""

from typing import Any, Literal

from pydantic import Field

from benchmarks.paired import PairedConfig, make_folder, measure
from common.platform.cli import parse_options
from common.platform.ending import as_program
from common.spec.options import Accelerator, Mode, TrainConfig
from comparison.plan.jobs import Contender

Task = Literal["lenet-mnist", "cnn-digits", "resnet18-cifar"]
MNIST = {"dataset": "mnist", "model": "lenet", "batch_size": 128, "train_size": 6400, "test_size": 1000, "epochs": 9}
CIFAR = {"dataset": "synthetic", "image_shape": (32, 32, 3), "model": "resnet18", "batch_size": 128}
TASKS: dict[Task, dict[str, Any]] = {
    "lenet-mnist": MNIST,
    "cnn-digits": {"dataset": "digits", "model": "cnn", "batch_size": 32, "epochs": 40},
    "resnet18-cifar": CIFAR | {"train_size": 256, "test_size": 128, "epochs": 5},  # a step takes seconds
}


class LimitConfig(PairedConfig):
    mode: list[Mode] = Field(["plain", "tuned"], min_length=1, description="the modes to measure, a row each")
    tasks: list[Task] = Field(list(TASKS), min_length=1, description="what is trained")
    accelerator: Accelerator = Field("cpu", description="where both train")
    compile: bool = Field(False, description="compile both; on a GPU PyTorch's bare loop is one CUDA graph")


def main() -> None:
    options = parse_options(LimitConfig, "python -m benchmarks.limit", "Measures what is lost around the step.")
    folder = make_folder(options, "limit")
    rows = [Contender(implementation, mode) for implementation in options.implementations for mode in options.mode]
    same: dict[str, Any] = {"precision": "32", "compile": options.compile, "accelerator": options.accelerator}
    for task in options.tasks:
        config = TrainConfig(**TASKS[task], **same, data_dir=options.data_dir.absolute())
        measure("limit", f"limit-{task}", {row: config.replace(mode=row.mode) for row in rows}, options.rounds, folder)


if __name__ == "__main__":
    with as_program("python -m benchmarks.limit"):
        main()
