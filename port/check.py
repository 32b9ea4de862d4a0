"""The check of a port: one process for each framework, then a table, the first departure and its cause."""

import os
import pickle
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from common.implementations import IMPLEMENTATIONS, environment_of, interpreter_of
from common.platform.errors import UserError
from common.platform.machine import REPOSITORY
from common.spec.own_network import FILES
from port.departure import Comparison, lines_of, rows_of
from port.run import Batch, Result

BATCH_SIZE = 7  # a number that other axes hardly have
# The check runs on the CPU, and prints nothing of the frameworks' own.
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "JAX_PLATFORMS": "cpu",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "PYTHONWARNINGS": "ignore",
    **environment_of("keras"),
}


def make_batch(image_shape: tuple[int, ...], num_classes: int) -> Batch:
    random = np.random.default_rng(1)
    images, labels = random.normal(size=(BATCH_SIZE, *image_shape)), random.integers(num_classes, size=BATCH_SIZE)
    return Batch(images, labels, num_classes)


def check(folder: Path, implementations: Sequence[str], batch: Batch, console: Console) -> bool:
    """Prints of each port whether it is the first file's network. Returns whether all are.

    Raises:
      UserError: a file can't be run.
    """
    first, *ports = run_all(folder, implementations, batch).items()
    same = True
    for name, result in ports:
        comparison = Comparison(first[1], result, FILES[first[0]], FILES[name], batch)
        table = Table(box=None, pad_edge=False)
        for heading in (comparison.here, comparison.there, "kind", "output", "gradient", ""):
            table.add_column(heading, justify="right" if heading in ("output", "gradient") else "left")
        for row in rows_of(comparison):
            table.add_row(*row)
        console.print(table)
        for line in lines_of(comparison):
            console.print(f"\n{line}")
        console.print()
        same &= comparison.departure is None
    return same


def run_all(folder: Path, implementations: Sequence[str], batch: Batch, seed: int = 0) -> dict[str, Result]:
    """The results of each file. The first one runs alone, since the others need its weights and outputs.

    Args:
      seed: of the initial weights.
    """
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        (place / "batch").write_bytes(pickle.dumps(batch))

        def start(name: str, *more: str) -> "subprocess.Popen[str]":
            files = "--batch", str(place / "batch"), "--output", str(place / name), "--seed", str(seed)
            return start_file(name, folder, *files, *more, text=True, stderr=subprocess.PIPE)

        first, *ports = implementations
        finish(first, start(first))
        running = [(name, start(name, "--reference", str(place / first))) for name in ports]
        for name, process in running:
            finish(name, process)
        # They are this program's own files.
        return {name: pickle.loads((place / name).read_bytes()) for name in implementations}  # noqa: S301


def start_file(name: str, folder: Path, *options: str, **how: Any) -> "subprocess.Popen[Any]":
    """Starts the process of a file of the folder, see `run.py`; `how`: as for Popen."""
    command = [interpreter_of(name), "-m", f"port.{name}", str(folder.resolve()), *options]
    return subprocess.Popen(command, cwd=REPOSITORY, env={**os.environ, **ENVIRONMENT}, **how)


def finish(name: str, process: "subprocess.Popen[str]") -> None:
    """Waits for a file's process. Raises UserError, with the last line that it has printed, if it fails."""
    _, printed = process.communicate()
    if process.returncode:
        package = IMPLEMENTATIONS[name].package
        if f"No module named '{package}'" in printed:
            raise UserError(f"{FILES[name]}: {package} is not installed; --implementations names the other files")
        raise UserError((printed.strip().splitlines() or [f"{FILES[name]}: ended with {process.returncode}"])[-1])
