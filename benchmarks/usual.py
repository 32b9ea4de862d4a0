"""The usual way: each implementation against the same training as its framework's own tutorials write it.

In 32-bit floats, as the tutorials train, and in `--mode best`.

python -m benchmarks.usual --data-dir DIR
"""

from rich.console import Console

from benchmarks.paired import BenchmarkConfig, Pair, Program, make_folder, measure, report
from common.cli import parse_options
from common.config import TrainConfig
from common.errors import whole_program

NAMES = ("tf", "pt", "ptl")
# What is to be reached on two CPU cores.
REACH = {"tf": 1.2, "pt": 2.5, "ptl": 2.5}
PAIRS = [Pair(name, f"{name} usual") for name in NAMES]
PAIRS += [Pair(f"{name} best", f"{name} usual", REACH[name]) for name in NAMES]


def main() -> None:
    options = parse_options(BenchmarkConfig, "python -m benchmarks.usual", "Measures against tutorials.")
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
    programs = [Program(name, f"{name}_impl", config) for name in NAMES]
    programs += [Program(f"{name} best", f"{name}_impl", config.replace(mode="best")) for name in NAMES]
    programs += [Program(f"{name} usual", f"benchmarks.loops.{name}_usual", config) for name in NAMES]
    samples = measure(programs, options.rounds, folder, console)
    report("usual", "images_per_second", samples, PAIRS, folder, console, {"config": config.training_fields()})


if __name__ == "__main__":
    with whole_program("python -m benchmarks.usual"):
        main()
