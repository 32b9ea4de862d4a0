"""The cost of --accumulate-grad-batches in memory, which must not grow with the number of batches, and in speed.

python -m benchmarks.accumulation
"""

from rich.console import Console
from rich.table import Table

from benchmarks.paired import BenchmarkConfig, Pair, Program, make_folder, measure, report
from common.platform.cli import parse_options
from common.platform.program import as_program
from common.record.results import read_result
from common.spec.options import TrainConfig

BATCH_SIZE, MANY = 64, 16
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
        train_size=8 * BATCH_SIZE * MANY,
        test_size=BATCH_SIZE,
        eval_batch_size=BATCH_SIZE,
        epochs=1,
        accelerator="cpu",
        devices=2,
    )
    programs = []
    for implementation in ("tf", "pt", "ptl"):
        for name, (size, number) in WAYS.items():
            changed = config.replace(batch_size=size, accumulate_grad_batches=number)
            programs.append(Program(f"{implementation} {name}", f"{implementation}_impl", changed))
    samples = measure(programs, options.rounds, folder, console)
    table = Table(title="largest peak memory, all processes together", box=None)
    for heading in ("", "batch size", "batches a step", "MiB"):
        table.add_column(heading, justify="right" if heading else "left")
    memory = {}
    for program in programs:
        results = [read_result(path) for path in folder.glob(f"round-*/{program.name.replace(' ', '-')}")]
        memory[program.name] = max(result.peak_memory_bytes for result in results) / 2**20
        numbers = program.config.batch_size, program.config.accumulate_grad_batches
        table.add_row(program.name, *map(str, numbers), f"{memory[program.name]:,.0f}")
    console.print(table)
    pairs = [Pair(f"{one} accumulated", f"{one} one batch") for one in ("tf", "pt", "ptl")]
    report("accumulation", "images_per_second", samples, pairs, folder, console, {"peak_memory_mib": memory})


if __name__ == "__main__":
    with as_program("python -m benchmarks.accumulation"):
        main()
