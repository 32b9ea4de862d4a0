"""The usual way: mode tutorial of each implementation, compared with an independent program.

The program (benchmarks/loops/NAME_usual.py) is what its framework's documentation teaches, without anything of this
project but the network and the clock.

python -m benchmarks.usual --data-dir DIR
"""

from rich.console import Console

from benchmarks.paired import (
    DataConfig,
    ImplementationsConfig,
    Pair,
    RoundsConfig,
    TimedProgram,
    make_folder,
    measure_in_turns,
    report_turns,
)
from common.platform.cli import parse_options
from common.platform.ending import as_program
from common.spec.options import TrainConfig


class UsualConfig(DataConfig, RoundsConfig, ImplementationsConfig):
    """`python -m benchmarks.usual --help` prints all options."""


def main() -> None:
    options = parse_options(UsualConfig, "python -m benchmarks.usual", "Measures mode tutorial.")
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
        mode="tutorial",
    )
    programs, pairs = [], []
    for name in options.implementations:
        programs.append(TimedProgram(name, f"{name}_impl", config))
        programs.append(TimedProgram(f"{name} usual", f"benchmarks.loops.{name}_usual", config))
        pairs.append(Pair(name, f"{name} usual"))
    run_dirs = measure_in_turns(programs, pairs, options.rounds, folder, console)
    report_turns("usual", run_dirs, pairs, folder, console, {"config": config.training_fields()})


if __name__ == "__main__":
    with as_program("python -m benchmarks.usual"):
        main()
