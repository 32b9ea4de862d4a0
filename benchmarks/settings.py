"""Settings: each implementation's images per second with a faster setting over those without, in pairs.

python -m benchmarks.settings --data-dir DIR
"""

from typing import Any

from rich.console import Console

from benchmarks.limit import TASKS, LimitConfig
from benchmarks.paired import Pair, Program, make_folder, measure, report
from common.cli import parse_options
from common.config import TrainConfig
from common.errors import whole_program

MATCHED = "matched"
SETTINGS: dict[str, dict[str, Any]] = {
    MATCHED: {},
    "bf16-mixed": {"precision": "bf16-mixed"},
    "16-mixed": {"precision": "16-mixed"},
    "compiled": {"compile": True},
    "compiled bf16": {"compile": True, "precision": "bf16-mixed"},
    "mode best": {"mode": "best"},
}
EPOCHS = {"lenet-mnist": 2, "two-devices": 2, "cnn-digits": 20}  # of float16 on a CPU, a step takes long


def main() -> None:
    options = parse_options(LimitConfig, "python -m benchmarks.settings", "Measures the faster settings.")
    console = Console(highlight=False)
    folder = make_folder(options, "settings")
    for task in options.tasks:
        config = TrainConfig(
            **{**TASKS[task], "epochs": EPOCHS[task], "data_dir": options.data_dir.absolute(), "accelerator": "cpu"}
        )
        programs = [
            Program(f"{name} {title}", f"{name}_impl", config.replace(**values))
            for name in options.implementations
            for title, values in SETTINGS.items()
        ]
        samples = measure(programs, options.rounds, folder / task, console)
        pairs = [
            Pair(f"{name} {title}", f"{name} {MATCHED}")
            for name in options.implementations
            for title in SETTINGS
            if title != MATCHED
        ]
        document = {"config": config.training_fields()}
        report(f"settings {task}", "images_per_second", samples, pairs, folder, console, document)


if __name__ == "__main__":
    with whole_program("python -m benchmarks.settings"):
        main()
