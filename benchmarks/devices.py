"""Two CPU devices against one, each with one thread, with batches of 512, which leave communication little to do.

What is lost around a step where communication shows is told by `benchmarks.limit --tasks two-devices`.

    python -m benchmarks.devices --data-dir DIR
"""

from rich.console import Console

from benchmarks.paired import BenchmarkConfig, Pair, Program, make_folder, measure, report
from common.cli import parse_options
from common.config import TrainConfig
from common.errors import whole_program

# What is to be reached on two CPU cores.
SPEED_UP = {"tf": 1.5, "pt": 1.7, "ptl": 1.7}


def main() -> None:
    options = parse_options(BenchmarkConfig, "python -m benchmarks.devices", "Measures two CPU devices against one.")
    console = Console(highlight=False)
    folder = make_folder(options, "devices")
    programs = []
    for name in SPEED_UP:
        for devices in (1, 2):
            config = TrainConfig(
                dataset="mnist",
                model="lenet",
                data_dir=options.data_dir.absolute(),
                accelerator="cpu",
                batch_size=512,
                devices=devices,
                threads_per_device=1,
                epochs=1,
                max_steps=60,
            )
            programs.append(Program(f"{name} x{devices}", f"{name}_impl", config))
    samples = measure(programs, options.rounds, folder, console)
    pairs = [Pair(f"{name} x2", f"{name} x1", reach) for name, reach in SPEED_UP.items()]
    report("devices", "images_per_second", samples, pairs, folder, console, {"batch_size": 512})


if __name__ == "__main__":
    with whole_program("python -m benchmarks.devices"):
        main()
