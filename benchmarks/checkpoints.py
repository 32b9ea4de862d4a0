"""The cost of checkpoints for the training loop, which continues while they are written.

The programs don't train in turns: a checkpoint would be written while its program waits, at no cost.

python -m benchmarks.checkpoints
"""

from statistics import median

from rich.console import Console

from benchmarks.paired import BenchmarkConfig, Pair, Program, make_folder, make_table, measure, ratios_of_runs, report
from common.platform.cli import parse_options
from common.platform.program import as_program
from common.record.checkpoints import checkpoint_dirs
from common.record.results import read_result
from common.spec.options import TrainConfig

EVERY, STEPS, BATCH_SIZE = 25, 250, 128


def main() -> None:
    about = f"Compares training without checkpoints and with one after every {EVERY} steps, on one CPU device."
    options = parse_options(BenchmarkConfig, "python -m benchmarks.checkpoints", about)
    console = Console(highlight=False)
    folder = make_folder(options, "checkpoints")
    config = TrainConfig(
        model="lenet",
        dataset="synthetic",
        image_shape=(28, 28, 1),
        train_size=STEPS * BATCH_SIZE,
        test_size=BATCH_SIZE,
        batch_size=BATCH_SIZE,
        epochs=1,
        optimizer="adam",
        accelerator="cpu",
        devices=1,
        keep=1,
    )
    names = ("tf", "keras", "pt", "ptl")
    programs = []
    for name in names:
        programs.append(Program(f"{name} without", f"{name}_impl", config))
        programs.append(Program(f"{name} with", f"{name}_impl", config.replace(checkpoint_every=EVERY)))
    samples = measure(programs, options.rounds, folder, console, "images_per_second")
    table = make_table(f"{STEPS // EVERY - 1} checkpoints in {STEPS} steps", "", "MiB each", "ms of training each")
    costs = {}
    for name in names:
        with_them, without = (
            [read_result(path) for path in sorted(folder.glob(f"round-*/{name}-{which}"))]
            for which in ("with", "without")
        )
        extra = [
            sum(one.epoch_train_seconds) - sum(other.epoch_train_seconds)
            for one, other in zip(with_them, without, strict=True)
        ]
        costs[name] = 1000 * median(extra) / (STEPS // EVERY - 1)
        latest = next(checkpoint_dirs(next(folder.glob(f"round-*/{name}-with"))))
        size = sum(path.stat().st_size for path in latest.iterdir()) / 2**20
        table.add_row(name, f"{size:.1f}", f"{costs[name]:.1f}")
    console.print(table)
    pairs = [Pair(f"{name} with", f"{name} without") for name in names]
    ratios = ratios_of_runs(samples, pairs)
    report("checkpoints", "images_per_second", samples, ratios, folder, console, {"milliseconds_each": costs})


if __name__ == "__main__":
    with as_program("python -m benchmarks.checkpoints"):
        main()
