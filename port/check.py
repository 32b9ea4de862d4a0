"""The processes of a check, one for each framework."""

import os
import pickle
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common.implementations import IMPLEMENTATIONS, environment_of, interpreter_of
from common.platform.errors import UserError
from common.platform.machine import REPOSITORY
from common.spec.own_network import NETWORK_FILES
from port.network import Probe
from port.run import PortResult

BATCH_SIZE = 7  # a number that other axes hardly have
# The check runs on the CPU, and prints nothing of the frameworks' own.
CHECK_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "JAX_PLATFORMS": "cpu",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "PYTHONWARNINGS": "ignore",
    **environment_of("keras"),
}


def make_probe(image_shape: tuple[int, ...], num_classes: int) -> Probe:
    random = np.random.default_rng(1)
    images, labels = random.normal(size=(BATCH_SIZE, *image_shape)), random.integers(num_classes, size=BATCH_SIZE)
    return Probe(images, labels, num_classes)


def run_all(folder: Path, implementations: Sequence[str], probe: Probe, seed: int = 0) -> dict[str, PortResult]:
    """The results of each file. The first one runs alone, since the others need its weights and outputs.

    Args:
      seed: of the initial weights.

    Raises:
      UserError: a file can't be run.
    """
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        (place / "probe").write_bytes(pickle.dumps(probe))

        def start(name: str, *more: str) -> "subprocess.Popen[str]":
            files = "--probe", str(place / "probe"), "--output", str(place / name), "--seed", str(seed)
            return start_file(name, folder, *files, *more, text=True, stderr=subprocess.PIPE)

        first, *ports = implementations
        end_process(first, start(first))
        running = [(name, start(name, "--reference", str(place / first))) for name in ports]
        for name, process in running:
            end_process(name, process)
        # They are this program's own files.
        return {name: pickle.loads((place / name).read_bytes()) for name in implementations}  # noqa: S301


def start_file(name: str, folder: Path, *options: str, **how: Any) -> "subprocess.Popen[Any]":
    """Starts the process of a file of the folder, see `run.py`; `how`: as for Popen."""
    command = [interpreter_of(name), "-m", f"port.{name}", str(folder.resolve()), *options]
    return subprocess.Popen(command, cwd=REPOSITORY, env={**os.environ, **CHECK_ENVIRONMENT}, **how)


def end_process(name: str, process: "subprocess.Popen[str]") -> None:
    """Waits for a file's process. Raises UserError, with the last line that it has printed, if it fails."""
    _, printed = process.communicate()
    if process.returncode:
        file, package = NETWORK_FILES[name], IMPLEMENTATIONS[name].package
        if f"No module named '{package}'" in printed:
            raise UserError(f"{file}: {package} is not installed; --implementations names the other files")
        raise UserError((printed.strip().splitlines() or [f"{file}: ended with {process.returncode}"])[-1])
