"""The cost of another busy program for each implementation, and what helps: fewer threads, sleeping threads, own cores.

PyTorch's threads (OpenMP) wait for each other in a loop. If another program takes the core of one thread, the others
waste their cores meanwhile. Each setting is measured alone and beside `--busy` busy loops, in turns. By default there
are half as many busy loops as the machine has cores.

    python -m benchmarks.noise
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from pydantic import Field
from rich.console import Console

from benchmarks.paired import ImplementationsConfig, Pair, Program, make_folder, report, run
from common.platform.cli import parse_options
from common.platform.errors import UserError
from common.platform.machine import num_cores
from common.platform.program import as_program
from common.spec.options import TrainConfig

BUSY_LOOP = "while True: pass"
PASSIVE = ("env", "OMP_WAIT_POLICY=passive", "GOMP_SPINCOUNT=0")


class NoiseConfig(ImplementationsConfig):
    busy: int = Field(max(1, num_cores() // 2), ge=1, description="busy loops that run beside a program")


def main() -> None:
    options = parse_options(NoiseConfig, "python -m benchmarks.noise", "Measures what a busy machine costs.")
    console = Console(highlight=False)
    if num_cores() < 2 or not shutil.which("taskset"):
        raise UserError("needs two cores, and taskset (util-linux)")
    folder = make_folder(options, "noise")
    config = TrainConfig(accelerator="cpu", epochs=8)
    half = max(1, num_cores() // 2)
    pinned = ("taskset", "--cpu-list", f"0-{half - 1}")
    programs, pairs = [], []
    for name in options.implementations:
        settings = {
            "": Program(name, f"{name}_impl", config),
            ", threads that sleep": Program(name, f"{name}_impl", config, starter=PASSIVE),
            f", {half} thread{'s' if half > 1 else ''}": Program(
                name, f"{name}_impl", config.replace(threads_per_device=half)
            ),
            f", {half} core{'s' if half > 1 else ''} of its own": Program(name, f"{name}_impl", config, starter=pinned),
        }
        for what, program in settings.items():
            programs.append(replace(program, name=f"{name}{what}"))
            pairs.append(Pair(f"{name}{what}, beside others", f"{name}{what}"))
            if what:
                pairs.append(Pair(f"{name}{what}, beside others", f"{name}, beside others"))
    samples: dict[str, list[float]] = {}
    for number in range(options.rounds):
        shift = number % len(programs)
        for program in [*programs[shift:], *programs[:shift]]:
            for others in (0, options.busy):
                name = f"{program.name}, beside others" if others else program.name
                with busy_loops(others):
                    found = run(program, folder / f"round-{number + 1}" / name.replace(" ", "-").replace(",", ""))
                samples.setdefault(name, []).append(found["images_per_second"])
                console.print(f"round {number + 1}/{options.rounds}: {name} {samples[name][-1]:,.0f} images per second")
    report("noise", "images_per_second", samples, pairs, folder, console, {"busy": options.busy})


@contextmanager
def busy_loops(number: int) -> Iterator[None]:
    """Runs `number` Python programs that do nothing but keep a core busy."""
    loops = [subprocess.Popen([sys.executable, "-c", BUSY_LOOP]) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


if __name__ == "__main__":
    with as_program("python -m benchmarks.noise"):
        main()
