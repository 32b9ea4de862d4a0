"""Compares two CPU devices with one, each with one thread. Batches of 512 need little communication.

Both modes train in 32-bit floats and without a compiler.

`benchmarks.limit --tasks two-devices` measures the loss around a step where communication matters.

    python -m benchmarks.devices --data-dir DIR
"""

from rich.console import Console

from benchmarks.limit import SAME_STEP
from benchmarks.paired import ModesConfig, Pair, Program, make_folder, measure_in_turns, report_turns
from common.platform.cli import parse_options
from common.platform.program import as_program
from common.spec.options import TrainConfig

# Targets of tuned mode on two CPU cores.
SPEED_UP = {"tf tuned": 1.5, "pt tuned": 1.7, "ptl tuned": 1.7}


def main() -> None:
    options = parse_options(ModesConfig, "python -m benchmarks.devices", "Measures two CPU devices against one.")
    console = Console(highlight=False)
    folder = make_folder(options, "devices")
    programs = []
    for row in options.rows:
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
                test_size=1000,
                max_steps=120,
                mode=row.mode,
                **SAME_STEP,
            )
            programs.append(Program(f"{row.name} x{devices}", f"{row.implementation}_impl", config))
    pairs = [Pair(f"{row.name} x2", f"{row.name} x1", SPEED_UP.get(row.name)) for row in options.rows]
    run_dirs = measure_in_turns(programs, pairs, options.rounds, folder, console)
    report_turns("devices", run_dirs, pairs, folder, console, {"batch_size": 512})


if __name__ == "__main__":
    with as_program("python -m benchmarks.devices"):
        main()
