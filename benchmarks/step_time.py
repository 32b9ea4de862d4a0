"""The accuracy of the model of a step's time (benchmarks/step_model.py), compared with measured steps.

PyTorch's plain DistributedDataParallel is measured with 1, 2, 3 and 4 replicas, each on its own node, on networks of
two speeds. The model is fitted to one replica alone, at two batch sizes, and to all-reduces on the network; it does not
use the measured steps. The nodes share this machine's cores: with more replicas than cores, computing takes longer by
that factor.

    python -m benchmarks.step_time --data-dir DIR                  needs root
"""

import statistics
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field
from rich.console import Console
from rich.table import Table

from benchmarks.network import measure, run_replicas
from benchmarks.paired import BenchmarkConfig, make_folder, write_document
from benchmarks.step_model import Computation, Network, step_seconds
from common.experiment import Experiment
from common.platform.cli import parse_options, to_arguments
from common.platform.machine import num_cores
from common.platform.program import as_program
from common.record.results import read_result
from common.spec.options import TrainConfig

BATCH_SIZE = 64  # of each replica
STEPS, WARMUP = 60, 10


class StepTimeConfig(BenchmarkConfig):
    """`python -m benchmarks.step_time --help` prints all options."""

    rounds: int = Field(3, gt=0, description="rounds; of each measurement the middle one counts")
    rates: list[str] = Field(["100mbit", "1gbit"], min_length=1, description="speeds of networks, as tc writes them")
    replicas: list[int] = Field([1, 2, 3, 4], min_length=1, description="numbers of replicas")


def main() -> None:
    options = parse_options(
        StepTimeConfig, "python -m benchmarks.step_time", "Compares the model's times with measured ones."
    )
    console = Console(highlight=False)
    folder = make_folder(options, "step-time")
    base = TrainConfig(
        dataset="mnist", model="lenet", data_dir=options.data_dir.absolute(), accelerator="cpu", threads_per_device=1
    ).replace(epochs=1, max_steps=STEPS, test_size=1000)
    experiment = Experiment.make(base)
    gradient_bytes = 4 * experiment.network.num_parameters
    alone = {size: steps(base, size, 1, None, options.rounds, folder) for size in (BATCH_SIZE, 4 * BATCH_SIZE)}
    computation = Computation.fit(*alone.items())
    table = Table(title="milliseconds of a step", box=None)
    for heading in ("network", "replicas", "measured", "by the model", "error"):
        table.add_column(heading, justify="right")
    found: list[dict[str, Any]] = []
    for rate in options.rates:
        network = Network.fit([one for count in (2, 3, 4) for one in measure(count, rate, folder / f"network-{rate}")])
        for count in options.replicas:
            measured = steps(base, BATCH_SIZE, count, rate, options.rounds, folder)
            slower = max(1.0, count / num_cores())
            shared = Computation(slower * computation.step_seconds, slower * computation.example_seconds)
            modelled = step_seconds(shared, BATCH_SIZE, gradient_bytes, count, network)
            found.append(
                {"rate": rate, "replicas": count, "measured_seconds": measured, "modelled_seconds": modelled}
                | {"latency_seconds": network.latency_seconds, "bytes_per_second": network.bytes_per_second}
            )
            shown = (f"{1e3 * measured:.2f}", f"{1e3 * modelled:.2f}", f"{modelled / measured - 1:+.0%}")
            table.add_row(rate, str(count), *shown)
    console.print(table)
    errors = [abs(one["modelled_seconds"] / one["measured_seconds"] - 1) for one in found]
    console.print(f"errors of the model: median {np.median(errors):.0%}, at most {max(errors):.0%}")
    write_document("step-time", folder, console, {"gradient_bytes": gradient_bytes, "steps": found})


def steps(base: TrainConfig, batch_size: int, replicas: int, rate: str | None, rounds: int, folder: Path) -> float:
    """Seconds of a step with `batch_size` examples for each replica: the median of `rounds` runs."""
    seconds = []
    for number in range(rounds):
        run_dir = folder.absolute() / f"{rate or 'alone'}-{replicas}x{batch_size}-{number + 1}"
        config = base.replace(batch_size=batch_size * replicas, run_dir=run_dir)
        place = run_dir.with_suffix(".nodes")
        place.mkdir()
        run_replicas(replicas, rate, place, ["-m", "pt_impl", *to_arguments(config)])
        speed = read_result(run_dir).images_per_second
        assert speed is not None
        seconds.append(batch_size * replicas / speed)
    return statistics.median(seconds)


if __name__ == "__main__":
    with as_program("python -m benchmarks.step_time"):
        main()
