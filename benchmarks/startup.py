"""Start-up time, from the command to the end of the first step, and its phases.

python -m benchmarks.startup
"""

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.paired import ModesConfig, RoundsConfig, TimedProgram, make_folder, run, write_document
from common.platform.cli import parse_options
from common.platform.ending import as_program
from common.spec.options import TrainConfig

REACH_SECONDS = 12


class StartupConfig(RoundsConfig, ModesConfig):
    """`python -m benchmarks.startup --help` prints all options."""


def main() -> None:
    options = parse_options(StartupConfig, "python -m benchmarks.startup", "Measures start-up.")
    console = Console(highlight=False)
    folder = make_folder(options, "startup")
    seconds: dict[str, list[float]] = {}
    phases: dict[str, list[dict[str, float]]] = {}
    for number in range(options.rounds):
        for row in options.rows:
            for devices in (1, 2):
                config = TrainConfig(max_steps=1, devices=devices, accelerator="cpu", mode=row.mode)
                title = f"{row.name} x{devices}"
                program = TimedProgram(title, f"{row.implementation}_impl", config)
                phase_seconds = run(program, folder / f"round-{number + 1}" / title.replace(" ", "-"))
                seconds.setdefault(title, []).append(phase_seconds["startup_seconds"])
                phases.setdefault(title, []).append(phase_seconds["phase_seconds"])
    table = Table(title="start-up, seconds", box=None)
    for heading in ("", "median", "middle half", "imports", "data", "build", f"< {REACH_SECONDS}"):
        table.add_column(heading, justify="right")
    for title, values in seconds.items():
        low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
        parts = [
            f"{np.median([seconds[part] for seconds in phases[title]]):.1f}" for part in ("imports", "data", "build")
        ]
        reached = "yes" if median < REACH_SECONDS else "NO"
        table.add_row(title, f"{median:.1f}", f"{low:.1f}-{high:.1f}", *parts, reached)
    console.print(table)
    write_document("startup", folder, console, {"startup_seconds": seconds, "phase_seconds": phases})


if __name__ == "__main__":
    with as_program("python -m benchmarks.startup"):
        main()
