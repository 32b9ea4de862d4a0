"""TensorFlow's replicas on one machine: compares two processes, started by mpirun, with two devices of one process.

In one process the replicas share TensorFlow's threads, and gradients are added in memory. Processes send them through
sockets (gRPC). PyTorch and Lightning have a process for each replica anyway; those of PyTorch are measured too.

    python -m benchmarks.processes --data-dir DIR
"""

import os

from rich.console import Console

from benchmarks.limit import SAME_STEP
from benchmarks.paired import BenchmarkConfig, Pair, Program, make_folder, measure_in_turns, report_turns
from common.platform.cli import parse_options
from common.platform.program import as_program
from common.spec.options import TrainConfig

BATCH_SIZES = (64, 512)


def main() -> None:
    options = parse_options(BenchmarkConfig, "python -m benchmarks.processes", "Measures TensorFlow in two processes.")
    console = Console(highlight=False)
    folder = make_folder(options, "processes")
    mpirun = ("mpirun", "-np", "2", "--bind-to", "none", *(("--allow-run-as-root",) if os.geteuid() == 0 else ()))
    programs, pairs = [], []
    for batch_size in BATCH_SIZES:
        config = TrainConfig(
            dataset="mnist",
            model="lenet",
            data_dir=options.data_dir.absolute(),
            accelerator="cpu",
            batch_size=batch_size,
            devices=2,
            threads_per_device=1,
            epochs=1,
            test_size=1000,
            max_steps=120,
            **SAME_STEP,
        )
        names = [f"{name}, batch {batch_size}" for name in ("one process", "two processes", "pt")]
        programs += [
            Program(names[0], "tf_impl", config),
            Program(names[1], "tf_impl", config.replace(devices="auto"), starter=mpirun),
            Program(names[2], "pt_impl", config),
        ]
        pairs += [Pair(names[1], names[0]), Pair(names[1], names[2])]
    run_dirs = measure_in_turns(programs, pairs, options.rounds, folder, console)
    report_turns("processes", run_dirs, pairs, folder, console, {})


if __name__ == "__main__":
    with as_program("python -m benchmarks.processes"):
        main()
