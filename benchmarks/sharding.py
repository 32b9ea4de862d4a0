"""Memory of a process by --strategy: it stores the whole network, its share of every weight, or one of two stages.

This is the private memory, see benchmarks.memory, of the largest process while it trains. On the CPU each process of
PyTorch and Lightning is a replica. Every process also stores the framework, the activations of its share of a batch,
and the initial weights that all processes begin with, in 64 bits.

    python -m benchmarks.sharding
"""

from statistics import median

from rich.console import Console

from benchmarks.memory import watch_run
from benchmarks.paired import BenchmarkConfig, make_folder, make_table, write_document
from common.experiment import Experiment
from common.platform.cli import parse_options
from common.platform.program import as_program
from common.record.results import read_result
from common.spec.options import TrainConfig
from comparison.store import LOG_FILE

WAYS = [("single_device", 1), ("ddp", 2), ("ddp", 3), ("fsdp", 2), ("fsdp", 3), ("pipeline", 2)]
CONFIG = TrainConfig(
    model="resnet50",
    dataset="synthetic",
    image_shape=(64, 64, 3),
    train_size=60,
    test_size=6,
    batch_size=6,
    eval_batch_size=6,
    epochs=1,
    optimizer="adam",
    accelerator="cpu",
    threads_per_device=1,
)
# Returns freed memory to the system at once. By default glibc would keep it, and nothing would be seen.
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536"}


def main() -> None:
    about = "Measures the memory of each process under ddp, fsdp and pipeline."
    options = parse_options(BenchmarkConfig, "python -m benchmarks.sharding", about)
    console = Console(highlight=False)
    folder = make_folder(options, "sharding")
    held: dict[str, list[float]] = {}  # of each round, the median of its samples
    peak: dict[str, list[float]] = {}
    for round_number in range(options.rounds):
        for implementation in ("pt", "ptl"):
            for strategy, devices in WAYS:
                name = f"{implementation} {strategy} {devices}"
                run_dir = (folder / f"round-{round_number + 1}" / name.replace(" ", "-")).absolute()
                run_dir.parent.mkdir(exist_ok=True)
                config = CONFIG.replace(strategy=strategy, devices=devices, run_dir=run_dir)
                log_path = run_dir.with_name(f"{run_dir.name}-{LOG_FILE}")
                samples = watch_run(name, implementation, config, log_path, ENVIRONMENT).samples
                result = read_result(run_dir)
                begin, duration = result.startup_seconds, sum(result.epoch_train_seconds)
                inside = [size / 2**20 for seconds, size in samples if begin <= seconds <= begin + duration]
                held.setdefault(name, []).append(median(inside))
                peak.setdefault(name, []).append(max(inside))
    parameters = Experiment.make(CONFIG).network.num_parameters
    megabytes = parameters * 4 * 4 / 2**20  # weights, gradients and Adam's two means, 4 bytes each
    console.print(f"{CONFIG.model}: weights, gradients and Adam's means, {megabytes:,.0f} MiB in all")
    table = make_table(
        f"private memory of a process, MiB, median of {options.rounds} rounds",
        "",
        "devices",
        "while it trains",
        "at most",
    )
    for name in held:
        row, count = name.rsplit(" ", 1)
        table.add_row(row, count, *(f"{median(one[name]):,.0f}" for one in (held, peak)))
    console.print(table)
    write_document("sharding", folder, console, {"held_mib": held, "peak_mib": peak})


if __name__ == "__main__":
    with as_program("python -m benchmarks.sharding"):
        main()
