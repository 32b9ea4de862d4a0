"""Memory that doesn't grow with the data: trains on a set of memory-mapped arrays larger than the allowed memory.

The arrays are sparse files: their size is real, but they contain zeros, and the speed means nothing. Private memory
belongs to one process alone (RssAnon in proc(5)). The kernel may drop pages of mapped files at any time.

    python -m benchmarks.memory
"""

import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import psutil
from numpy.lib import format as npy
from pydantic import Field
from rich.console import Console
from rich.table import Table

from benchmarks.paired import ModesConfig, make_folder, write_document
from common.data.arrays import array_path, write_arrays_info
from common.implementations import interpreter_of
from common.platform.cli import parse_options, to_arguments
from common.platform.ending import as_program
from common.platform.errors import UserError
from common.platform.machine import REPOSITORY
from common.record.results import read_result
from common.spec.options import TrainConfig
from comparison.run.store import LOG_FILE

GIB = 2**30
REACH_BYTES = 2 * GIB
IMAGE_SHAPE = (64, 64, 3)
SAMPLE_SECONDS = 0.1


class MemoryConfig(ModesConfig):
    gib: float = Field(10.5, gt=0, description="size of the training images, in GiB")
    devices: int = Field(2, gt=0, description="replicas")
    steps: int = Field(100, gt=0, description="training steps")


def make_sparse_set(folder: Path, num_train: int) -> None:
    """Writes arrays of zeros that need no space on the disk, with labels that count through the classes."""
    folder.mkdir()
    for part, count in (("train", num_train), ("test", 256)):
        path = array_path(folder, part, "images")
        with open(path, "wb") as file:
            npy.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (count, *IMAGE_SHAPE)})
            file.truncate(file.tell() + count * int(np.prod(IMAGE_SHAPE)))
        np.save(array_path(folder, part, "labels"), np.arange(count) % 10)
    write_arrays_info(folder, list(map(str, range(10))))


class PrivateMemory(threading.Thread):
    """Measures the private memory of a process tree until it ends.

    Attributes:
      peak: the largest RssAnon of a process until now, in bytes.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.peak = pid, 0

    def run(self) -> None:
        while True:
            try:
                root = psutil.Process(self.pid)
                found = [private_bytes(process.pid) for process in (root, *root.children(recursive=True))]
                self.peak = max(self.peak, *found)
            except psutil.NoSuchProcess:
                return
            time.sleep(SAMPLE_SECONDS)


def private_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


def peak_of_run(name: str, implementation: str, config: TrainConfig, log_path: Path) -> int:
    """Makes a run; returns its peak of private memory, in bytes. Raises UserError, with its `name`, if it fails."""
    with open(log_path, "w") as log:
        command = [interpreter_of(implementation), "-m", f"{implementation}_impl", *to_arguments(config)]
        process = subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=log)
        watch = PrivateMemory(process.pid)
        watch.start()
        if process.wait():
            raise UserError(f"{name}: ended with status {process.returncode}; see {log_path}")
    return watch.peak


def main() -> None:
    options = parse_options(MemoryConfig, "python -m benchmarks.memory", "Measures memory on data larger than it.")
    console = Console(highlight=False)
    folder = make_folder(options, "memory")
    num_train = int(options.gib * GIB / np.prod(IMAGE_SHAPE))
    make_sparse_set(folder / "data", num_train)
    size = array_path(folder / "data", "train", "images").stat().st_size
    table = Table(title=f"{num_train:,} images, {size / GIB:.1f} GiB, {options.devices} replicas", box=None)
    for heading in ("", "private memory, GiB", f"< {REACH_BYTES / GIB:g}"):
        table.add_column(heading, justify="right")
    peaks: dict[str, int] = {}
    for row in options.rows:
        run_dir = (folder / row.name.replace(" ", "-")).absolute()
        log_path = run_dir.with_name(f"{run_dir.name}-{LOG_FILE}")
        config = TrainConfig(
            dataset="arrays",
            data_dir=(folder / "data").absolute(),
            run_dir=run_dir,
            max_steps=options.steps,
            epochs=1,
            batch_size=128,
            devices=options.devices,
            accelerator="cpu",
            mode=row.mode,
        )
        peaks[row.name] = peak_of_run(row.name, row.implementation, config, log_path)
        assert read_result(run_dir).num_steps == options.steps
        # All replicas of TensorFlow and of JAX are in one process; each replica of PyTorch has its own process.
        per_replica = peaks[row.name] / (options.devices if row.implementation in ("tf", "keras", "jax") else 1)
        table.add_row(row.name, f"{per_replica / GIB:.2f}", "yes" if per_replica < REACH_BYTES else "NO")
    console.print(table)
    document = {"train_images_bytes": size, "devices": options.devices, "peak_private_bytes_of_a_process": peaks}
    write_document("memory", folder, console, document)


if __name__ == "__main__":
    with as_program("python -m benchmarks.memory"):
        main()
