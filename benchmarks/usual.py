"""The usual way: each implementation is compared with the same training in the style of its framework's tutorials.

The tutorials train in 32-bit floats, as plain mode does. `--mode tuned` chooses its own settings.

python -m benchmarks.usual --data-dir DIR
"""

from rich.console import Console

from benchmarks.paired import ModesConfig, Pair, TimedProgram, make_folder, measure_in_turns, report_turns
from common.platform.cli import parse_options
from common.platform.ending import as_program
from common.spec.options import TrainConfig

# Implementation -> the framework of the tutorial it is compared with. TensorFlow's own tutorials train with Keras.
TUTORIAL: dict[str, str] = {"tf": "tf", "pt": "pt", "ptl": "ptl", "keras": "tf"}
# Targets of tuned mode on two CPU cores.
REACH = {"tf tuned": 1.2, "pt tuned": 2.5, "ptl tuned": 2.5}


def main() -> None:
    options = parse_options(ModesConfig, "python -m benchmarks.usual", "Measures against tutorials.")
    console = Console(highlight=False)
    folder = make_folder(options, "usual")
    config = TrainConfig(
        dataset="mnist",
        model="lenet",
        batch_size=128,
        epochs=1,
        max_steps=300,
        data_dir=options.data_dir.absolute(),
        accelerator="cpu",
    )
    programs = [
        TimedProgram(row.name, f"{row.implementation}_impl", config.replace(mode=row.mode)) for row in options.rows
    ]
    for name in dict.fromkeys(TUTORIAL[implementation] for implementation in options.implementations):
        programs.append(TimedProgram(f"{name} usual", f"benchmarks.loops.{name}_usual", config))
    pairs = [Pair(row.name, f"{TUTORIAL[row.implementation]} usual", REACH.get(row.name)) for row in options.rows]
    run_dirs = measure_in_turns(programs, pairs, options.rounds, folder, console)
    report_turns("usual", run_dirs, pairs, folder, console, {"config": config.training_fields()})


if __name__ == "__main__":
    with as_program("python -m benchmarks.usual"):
        main()
