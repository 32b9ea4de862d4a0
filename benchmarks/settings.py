"""Settings: each implementation's images per second with a setting, divided by those without it, in turns.

The settings are those that options switch, one at a time. `benchmarks.measures` has those without an option.

python -m benchmarks.settings --data-dir DIR
"""

from typing import Any

from rich.console import Console

from benchmarks.limit import SAME_STEP, TasksConfig, task_config
from benchmarks.paired import Pair, Program, make_folder, measure_in_turns, report_turns
from common.platform.cli import parse_options
from common.platform.program import as_program

TUNED: dict[str, Any] = {"mode": "tuned", **SAME_STEP}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"mode": "plain"},
    "tuned 32-bit": TUNED,
    "tuned, data on host": {**TUNED, "data_on": "host"},
    "bf16-mixed": {**TUNED, "precision": "bf16-mixed"},
    "16-mixed": {**TUNED, "precision": "16-mixed"},
    "compiled": {**TUNED, "compile": True},
    "compiled bf16": {**TUNED, "compile": True, "precision": "bf16-mixed"},
    "tuned": {"mode": "tuned"},
}
# The first of each pair is divided by the second. `tuned 32-bit` includes data on the device.
PAIRS = [
    ("tuned 32-bit", "plain"),
    ("tuned", "plain"),
    ("tuned 32-bit", "tuned, data on host"),
    *((name, "tuned 32-bit") for name in ("bf16-mixed", "16-mixed", "compiled", "compiled bf16")),
]
LEFT_OUT = {"keras": {"tuned, data on host"}}  # Keras's data are always on the host
EPOCHS = {
    "lenet-mnist": 2,
    "two-devices": 2,
    "cnn-digits": 20,
    "resnet18-cifar": 1,
}  # a step in float16 takes long on a CPU


def main() -> None:
    options = parse_options(TasksConfig, "python -m benchmarks.settings", "Measures the faster settings.")
    console = Console(highlight=False)
    folder = make_folder(options, "settings")
    for task in options.tasks:
        config = task_config(task, options).replace(epochs=EPOCHS[task])
        programs = [
            Program(f"{name} {title}", f"{name}_impl", config.replace(**values))
            for name in options.implementations
            for title, values in SETTINGS.items()
            if title not in LEFT_OUT.get(name, ())
        ]
        pairs = [
            Pair(f"{name} {title}", f"{name} {reference}")
            for name in options.implementations
            for title, reference in PAIRS
            if reference not in LEFT_OUT.get(name, ())
        ]
        run_dirs = measure_in_turns(programs, pairs, options.rounds, folder / task, console)
        report_turns(f"settings {task}", run_dirs, pairs, folder, console, {"config": config.training_fields()})


if __name__ == "__main__":
    with as_program("python -m benchmarks.settings"):
        main()
