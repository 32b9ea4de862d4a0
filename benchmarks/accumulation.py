"""The cost of --accumulate-grad-batches in memory, which must not grow with the number of batches, and in speed.

python -m benchmarks.accumulation
"""

from rich.console import Console

from benchmarks.paired import BenchmarkConfig, Pair, Program, make_folder, make_table, measure_in_turns, report_turns
from common.platform.cli import parse_options
from common.platform.program import as_program
from common.record.results import read_result
from common.spec.options import TrainConfig

BATCH_SIZE, MANY = 64, 16
STEPS = 40  # of each program: programs that train in turns take as many steps in a turn
IMPLEMENTATIONS = ("tf", "pt", "ptl")
# Name -> batch size and number of batches in a step.
WAYS = {"one batch": (BATCH_SIZE, 1), "accumulated": (BATCH_SIZE, MANY), "as large": (BATCH_SIZE * MANY, 1)}


def main() -> None:
    about = "Compares small batches, accumulated ones, and batches as large, on two CPU devices."
    options = parse_options(BenchmarkConfig, "python -m benchmarks.accumulation", about)
    console = Console(highlight=False)
    folder = make_folder(options, "accumulation")
    config = TrainConfig(
        model="resnet8",
        dataset="synthetic",
        image_shape=(32, 32, 3),
        train_size=STEPS * BATCH_SIZE * MANY,
        max_steps=STEPS,
        test_size=BATCH_SIZE,
        eval_batch_size=BATCH_SIZE,
        epochs=1,
        accelerator="cpu",
        devices=2,
    )
    programs = []
    for implementation in IMPLEMENTATIONS:
        for name, (size, number) in WAYS.items():
            changed = config.replace(batch_size=size, accumulate_grad_batches=number)
            programs.append(Program(f"{implementation} {name}", f"{implementation}_impl", changed))
    pairs = [
        Pair(f"{one} accumulated", f"{one} {other}") for one in IMPLEMENTATIONS for other in ("one batch", "as large")
    ]
    run_dirs = measure_in_turns(programs, pairs, options.rounds, folder, console)
    table = make_table("largest peak memory, all processes together", "", "batch size", "batches a step", "MiB")
    memory = {}
    for program in programs:
        memory[program.name] = max(read_result(one).peak_memory_bytes for one in run_dirs[program.name]) / 2**20
        numbers = program.config.batch_size, program.config.accumulate_grad_batches
        table.add_row(program.name, *map(str, numbers), f"{memory[program.name]:,.0f}")
    console.print(table)
    report_turns("accumulation", run_dirs, pairs, folder, console, {"peak_memory_mib": memory})


if __name__ == "__main__":
    with as_program("python -m benchmarks.accumulation"):
        main()
