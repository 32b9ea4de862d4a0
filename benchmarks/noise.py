"""The cost of another busy program for each implementation, and what helps: fewer threads, sleeping threads, own cores.

PyTorch's threads (OpenMP) wait for each other in a loop. If another program takes the core of one thread, the others
waste their cores meanwhile. Each setting is measured alone and beside `--busy` busy loops, in turns. The loops run
only while their program has its turn. By default there are half as many busy loops as the machine has cores.

    python -m benchmarks.noise
"""

import shutil
from dataclasses import replace

from pydantic import Field
from rich.console import Console

from benchmarks.paired import ImplementationsConfig, Pair, Program, make_folder, measure_in_turns, report_turns
from common.platform.cli import parse_options
from common.platform.errors import UserError
from common.platform.machine import num_cores
from common.platform.program import as_program
from common.spec.options import TrainConfig

PASSIVE = ("env", "OMP_WAIT_POLICY=passive", "GOMP_SPINCOUNT=0")


class NoiseConfig(ImplementationsConfig):
    busy: int = Field(max(1, num_cores() // 2), ge=1, description="busy loops that run beside a program")


def main() -> None:
    options = parse_options(NoiseConfig, "python -m benchmarks.noise", "Measures what a busy machine costs.")
    console = Console(highlight=False)
    if num_cores() < 2 or not shutil.which("taskset"):
        raise UserError("needs two cores, and taskset (util-linux)")
    folder = make_folder(options, "noise")
    config = TrainConfig(accelerator="cpu", epochs=20)
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
            alone, beside = f"{name}{what}", f"{name}{what}, beside others"
            programs.append(replace(program, name=alone))
            arguments = (str(options.busy), program.module)
            programs.append(replace(program, name=beside, module="benchmarks.loops.beside_busy", arguments=arguments))
            pairs.append(Pair(beside, alone))
            if what:
                pairs.append(Pair(beside, f"{name}, beside others"))
    run_dirs = measure_in_turns(programs, pairs, options.rounds, folder, console)
    report_turns("noise", run_dirs, pairs, folder, console, {"busy": options.busy})


if __name__ == "__main__":
    with as_program("python -m benchmarks.noise"):
        main()
