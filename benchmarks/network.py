"""Latency and bandwidth between replicas, from all-reduces of 4 KiB to 4 MiB among 2, 3 and 4 processes.

    python -m benchmarks.network                                   processes of this machine
    python -m benchmarks.network --rate 100mbit                    each on its own node, on a network of that speed
    torchrun --nnodes 2 ... benchmarks/loops/pt_all_reduce.py FILE    on a real cluster; then
    python -m benchmarks.network --measured FILE FILE

The nodes are network namespaces of this machine (tests/engines/nodes.py), which needs root.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field
from rich.console import Console
from rich.table import Table

from benchmarks.paired import FolderConfig, make_folder, write_document
from benchmarks.step_model import AllReduce, Network
from common.platform.cli import parse_options
from common.platform.ending import as_program, signals_as_ctrl_c
from common.platform.errors import UserError
from common.platform.machine import REPOSITORY
from tests.engines.nodes import Nodes

PORT = 29500
Count = Annotated[int, Field(ge=2, le=64)]


class NetworkConfig(FolderConfig):
    """`python -m benchmarks.network --help` prints all options."""

    processes: list[Count] = Field([2, 3, 4], min_length=1, description="numbers of processes to measure")
    rate: str | None = Field(
        None, description="simulate nodes on this machine, each limited to this rate in tc's notation: 100mbit, 1gbit"
    )
    measured: list[Path] = Field([], description="files of pt_all_reduce.py, instead of measuring here")


def main() -> None:
    options = parse_options(NetworkConfig, "python -m benchmarks.network", "Measures what connects replicas.")
    console = Console(highlight=False)
    folder = make_folder(options, "network")
    if options.measured:
        measured = [measurement for path in options.measured for measurement in read(path)]
    else:
        measured = [measurement for count in options.processes for measurement in measure(count, options.rate, folder)]
    network = Network.fit(measured)
    report(measured, network, folder, console)


def measure(count: int, rate: str | None, folder: Path) -> list[AllReduce]:
    """Times all-reduces of `count` processes on this machine; with `rate`, each on its own node. Raises UserError."""
    path = folder.absolute() / f"all-reduce-{count}.json"
    run_replicas(count, rate, folder, [str(REPOSITORY / "benchmarks" / "loops" / "pt_all_reduce.py"), str(path)])
    return read(path)


def run_replicas(count: int, rate: str | None, folder: Path, words: Sequence[str]) -> None:
    """Runs `torchrun ... words` in `count` processes until they end. Raises UserError if one fails."""
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    if rate is None:
        commands = [[*torchrun, "--standalone", "--nproc-per-node", str(count), *words]]
        _run(commands, folder, environment)
        return
    nodes = Nodes(folder.absolute() / "nodes", os.getpid() % 256, count, rate)
    nodes.start()
    try:
        common = ["--nnodes", str(count), "--nproc-per-node", "1", "--master-addr", "n1", "--master-port", str(PORT)]
        commands = [
            nodes.command(name, *torchrun, *common, "--node-rank", str(rank), *words)
            for rank, name in enumerate(nodes.names)
        ]
        _run(commands, folder, environment)
    finally:
        nodes.stop()


def _run(commands: list[list[str]], folder: Path, environment: dict[str, str]) -> None:
    with open(folder / "log.txt", "a") as log:
        processes = [
            subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=log, stderr=log) for command in commands
        ]
        statuses = [process.wait() for process in processes]
    if any(statuses):
        raise UserError(f"processes ended with status {' '.join(map(str, statuses))}; see {folder / 'log.txt'}")


def read(path: Path) -> list[AllReduce]:
    try:
        return [AllReduce(**fields) for fields in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"--measured {path}: not a file of pt_all_reduce.py: {error}") from None


def report(measured: list[AllReduce], network: Network, folder: Path, console: Console) -> None:
    table = Table(title="all-reduce, milliseconds", box=None)
    for heading in ("processes", "KiB", "measured", "by the model", "error"):
        table.add_column(heading, justify="right")
    errors = []
    for measurement in measured:
        modelled = network.all_reduce_seconds(measurement.num_bytes, measurement.replicas)
        errors.append(modelled / measurement.seconds - 1)
        shown = (f"{1e3 * measurement.seconds:.3g}", f"{1e3 * modelled:.3g}", f"{errors[-1]:+.0%}")
        table.add_row(str(measurement.replicas), f"{measurement.num_bytes / 1024:,.0f}", *shown)
    console.print(table)
    latency, speed = network.latency_seconds, network.bytes_per_second
    console.print(f"latency {1e6 * latency:.0f} microseconds, bandwidth {speed / 1e6:,.1f} MB/s of each process")
    console.print(f"errors of the model: median {np.median(np.abs(errors)):.0%}, at most {max(map(abs, errors)):.0%}")
    rates = {
        "latency_seconds": latency,
        "bytes_per_second": speed,
        "measured": [vars(measurement) for measurement in measured],
    }
    write_document("network", folder, console, rates)


if __name__ == "__main__":
    with as_program("python -m benchmarks.network"):
        signals_as_ctrl_c()
        main()
