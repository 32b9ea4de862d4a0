"""Everything that needs a GPU, in one command: makes a page, `gpu.md`.

Each part is a command of its own, ended after its minutes. A part that fails is reported, and the next one begins. What
no longer fits into `--minutes` is left out, so the parts are in order of importance.

    make gpu
    python -m benchmarks.gpu --accelerator cpu --parts modes turns      # a trial without a GPU
"""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from benchmarks.paired import ALL, CONSOLE, FolderConfig, Implementation, make_folder
from common.platform.cli import parse_options
from common.platform.ending import as_program
from common.platform.errors import UserError
from common.platform.files import write_text
from common.platform.machine import cpu_name, has_gpu, list_gpus
from common.spec.options import Accelerator


class Part(NamedTuple):
    """What a part shows, the words of its command that follow `python`, and the minutes after which it is ended."""

    shows: str
    command: str
    minutes: float


PartName = Literal[
    "lockstep", "peak", "modes", "bf16", "float16", "tf32", "compiled", "turns",
    "limit", "graphs", "resnet18", "mnist-99", "cifar10-94",
]  # fmt: skip
IMAGES = "compare.py --dataset synthetic --image-shape 28 28 1 --model lenet --batch-size 128 --train-size 12800"
LENET = f"{IMAGES} --epochs 3 --repeats 1 --mode plain tuned"
LIMIT = "-m benchmarks.limit --rounds 3 --tasks lenet-mnist cnn-digits"
RESNET18 = "--model resnet18 --batch-size 512 --repeats 1 --mode tuned"
SYNTHETIC = "--dataset synthetic --image-shape 32 32 3 --train-size 20480 --epochs 2"
SEEDS = "--target-accuracy 0.99 --repeats 1 --seeds 0 1 2 3 4 5 6 7 8 9"
CIFAR = "--config configs/cifar10.yaml --epochs 24 --target-accuracy 0.94"
LOCKSTEP = "-m pytest -q -n auto --maxprocesses 16 --dist load tests/parity/test_gpu.py"
PARTS: dict[PartName, Part] = {
    "lockstep": Part("Each step on the GPU is the step on the CPU; no step waits for the GPU.", LOCKSTEP, 8),
    "peak": Part("The speed of matrix products: the limit of every network.", "-m benchmarks.loops.pt_peak", 1),
    "modes": Part("Three modes, in 32 bits.", f"{IMAGES} --epochs 3 --repeats 1 --mode tutorial plain tuned", 6),
    "bf16": Part("Speed, and what rounding explains in audited steps.", f"{LENET} --precision bf16-mixed", 4),
    "float16": Part("The same in float16.", f"{LENET} --precision 16-mixed", 4),
    "tf32": Part("The same in TF32.", f"{LENET} --tf32 true", 4),
    "compiled": Part("The same, compiled.", f"{LENET} --compile true", 4),
    "turns": Part("Turns on one card, three rounds.", f"{IMAGES} --epochs 3 --repeats 3 --mode plain tuned", 6),
    "limit": Part("What is lost around the step, against a bare loop.", LIMIT, 6),
    "graphs": Part("The same against a bare loop that is one CUDA graph.", f"{LIMIT} --compile true", 6),
    "resnet18": Part("Images per second, to hold against the peak.", f"compare.py {SYNTHETIC} {RESNET18}", 4),
    "mnist-99": Part("Training time to 99 %.", f"compare.py --config configs/mnist-99-percent-soon.yaml {SEEDS}", 6),
    "cifar10-94": Part("Training time to 94 %.", f"compare.py {CIFAR} {RESNET18}", 6),
}


class GpuConfig(FolderConfig):
    data_dir: Path = Field(Path("data"), description="folder of data sets")
    implementations: list[Implementation] = Field(ALL, min_length=1, description="which take part")
    accelerator: Accelerator = Field("gpu", description="cpu: a trial of this program")
    minutes: float = Field(25, gt=0, description="what all parts may take together")
    parts: list[PartName] = Field(list(PARTS), min_length=1, description="what is tried and measured")


def arguments(name: PartName, options: GpuConfig, folder: Path) -> list[str]:
    """The words that follow `python` in the command of a part."""
    words = PARTS[name].command.split()
    if name in ("lockstep", "peak"):
        return words
    words += ["--implementations", *options.implementations, "--accelerator", options.accelerator]
    return [*words, "--data-dir", str(options.data_dir), "--output-dir", str(folder / name)]


def run_part(words: list[str], seconds: float, log_path: Path) -> str:
    """Runs a command, but no longer than these seconds; returns how it has ended."""
    command = ["timeout", "--kill-after=20", f"{seconds:.0f}", sys.executable, *words]
    with open(log_path, "wb") as log:
        status = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log).returncode
    return {0: "ok", 124: f"ended after {seconds:.0f} s"}.get(status, f"exit status {status}")


def main() -> None:
    options = parse_options(GpuConfig, "python -m benchmarks.gpu", "Tries and measures everything that needs a GPU.")
    on_gpu = options.accelerator == "gpu"
    if on_gpu and not has_gpu():
        raise UserError("--accelerator gpu: nvidia-smi lists no GPU; --accelerator cpu tries this program")
    folder, end = make_folder(options, "gpu"), time.monotonic() + 60 * options.minutes
    os.environ["TEST_DATA_DIR"] = str(options.data_dir.absolute())
    page = [f"# {list_gpus()[0] if on_gpu else cpu_name()}", ""]
    for name in options.parts:
        words, log_path = arguments(name, options, folder), folder / f"{name}.log"
        seconds = min(60 * PARTS[name].minutes, end - time.monotonic())
        status = run_part(words, seconds, log_path) if seconds > 5 else "left out, for want of time"
        CONSOLE.print(f"{name}: {status}", soft_wrap=True)
        said = log_path.read_text(errors="replace").splitlines()[-40:] if log_path.exists() else []
        page += [f"## {name}: {status}", "", PARTS[name].shows, "", "```", shlex.join(["python", *words]), ""]
        page += [*said, "```", ""]
        write_text(folder / "gpu.md", "\n".join(page))  # whatever ends this program, what is done is kept
    CONSOLE.print(f"page: {folder / 'gpu.md'}")


if __name__ == "__main__":
    with as_program("python -m benchmarks.gpu"):
        main()
