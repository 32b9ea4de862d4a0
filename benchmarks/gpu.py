"""Everything that needs a GPU, in one command: makes a page, `gpu.md`, and `gpu.json` with the device's name.

Each part is a command of its own, ended after its minutes. A part that fails is reported, and the next one begins. What
no longer fits into `--minutes` is left out, so the parts are in order of importance. Frameworks that are not installed
are left out, too.

    make gpu
    python -m benchmarks.gpu --data-dir DIR --minutes 25
    python -m benchmarks.gpu --accelerator cpu --parts modes turns      # a trial without a GPU
"""

import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field
from rich.console import Console

from benchmarks.paired import FolderConfig, Implementation, make_folder, write_document
from common.data.catalogue import dataset_entry
from common.implementations import IMPLEMENTATIONS, interpreter_of
from common.platform.cli import parse_options
from common.platform.ending import as_program
from common.platform.errors import UserError
from common.platform.files import write_text
from common.platform.gpus import has_gpu, list_gpus
from common.platform.machine import cpu_name
from common.record.results import read_result
from common.spec.options import Accelerator, DatasetName, TrainConfig
from comparison.prove.audits import read_audits
from comparison.run.runner import end_process_group, exit_failure

PartName = Literal[
    "lockstep",
    "peak",
    "modes",
    "bf16",
    "float16",
    "tf32",
    "compiled",
    "turns",
    "limit",
    "graphs",
    "resnet18",
    "resnet50",
    "mnist-99",
    "cifar10-94",
    "beside",
    "two-processes",
]
IMAGES = ("--dataset", "synthetic", "--image-shape", "28", "28", "1", "--model", "lenet", "--batch-size", "128")
RESIDUAL: dict[PartName, tuple[str, ...]] = {  # images that each takes; resnet50 takes none below 64 x 64
    "resnet18": ("--image-shape", "32", "32", "3", "--batch-size", "512", "--train-size", "20480"),
    "resnet50": ("--image-shape", "64", "64", "3", "--batch-size", "256", "--train-size", "10240"),
}
CIFAR_94 = ("--config", "configs/cifar10.yaml", "--model", "resnet18", "--batch-size", "512", "--epochs", "24")
LOCKSTEP = "-m pytest -q -n auto --maxprocesses 16 --dist load tests/parity/test_gpu.py"
PASSES = 3  # of a training step: forward, and backward for the inputs and for the weights
LINES = 40  # of a part's output that the page shows


class GpuConfig(FolderConfig):
    """The options."""

    data_dir: Path = Field(
        Path("data"), description="folder of data sets; parts whose data set is missing are left out"
    )
    implementations: list[Implementation] = Field(
        ["pt", "ptl", "jax", "tf", "keras"], min_length=1, description="which take part, if they are installed"
    )
    accelerator: Accelerator = Field("gpu", description="cpu: a trial of this program")
    minutes: float = Field(25, gt=0, description="what all parts may take together")
    parts: list[PartName] = Field(list(get_args(PartName)), min_length=1, description="what is tried and measured")
    beside: list[Path] = Field(
        [], description="programs to time beside CIFAR-10's part, such as airbench's, each started by this Python"
    )


@dataclass(frozen=True)
class Part:
    """A command, and what it shows.

    Attributes:
      minutes: after which it is ended.
      dataset: that it needs; None: none.
    """

    name: str
    shows: str
    command: tuple[str, ...]
    minutes: float
    dataset: DatasetName | None = None


def make_parts(options: GpuConfig, names: list[Implementation], folder: Path) -> list[Part]:
    """All parts, the most important first."""
    device = ("--accelerator", options.accelerator)
    data = ("--data-dir", str(options.data_dir))

    def compare(name: PartName, *words: str) -> tuple[str, ...]:
        command = (sys.executable, "compare.py", "--implementations", *names, *device, *data, *words)
        return (*command, "--output-dir", str(folder / name))

    peak = ("-m", "benchmarks.loops.pt_peak", *(("cuda", "8192") if options.accelerator == "gpu" else ("cpu", "1024")))
    lenet = (*IMAGES, "--train-size", "12800", "--epochs", "3", "--repeats", "1")
    parts = [
        Part(
            "lockstep",
            "Each step on the GPU is the step on the CPU, in 64 and 32 bits; no step waits for the GPU.",
            (sys.executable, *LOCKSTEP.split()),
            8,
        ),
        Part("peak", "The speed of matrix products: the limit of every network.", (sys.executable, *peak), 1),
        Part("modes", "Three modes, in 32 bits.", compare("modes", *lenet, "--mode", "tutorial", "plain", "tuned"), 6),
    ]
    precisions: list[tuple[PartName, tuple[str, ...]]] = [
        ("bf16", ("--precision", "bf16-mixed")),
        ("float16", ("--precision", "16-mixed")),
        ("tf32", ("--tf32", "true")),
        ("compiled", ("--compile", "true")),
    ]
    for name, words in precisions:
        if name != "tf32" or options.accelerator == "gpu":  # a CPU has no TF32
            shows = f"{' '.join(words)}: speed, and what rounding explains in audited steps."
            parts.append(Part(name, shows, compare(name, *lenet, "--mode", "plain", "tuned", *words), 4))
    turns = compare(
        "turns", *IMAGES, "--train-size", "12800", "--epochs", "3", "--repeats", "3", "--mode", "plain", "tuned"
    )

    def limit(name: PartName, *words: str) -> tuple[str, ...]:
        command = (sys.executable, "-m", "benchmarks.limit", "--rounds", "3", "--tasks", "lenet-mnist", "cnn-digits")
        return (*command, *words, *device, *data, "--implementations", *names, "--output-dir", str(folder / name))

    parts += [
        Part("turns", "Rows in turns on one card, three rounds: ratios and their intervals.", turns, 6),
        Part(
            "limit",
            "What is lost around the step, against a bare loop.",
            limit("limit"),
            6,
            "mnist",
        ),
        Part(
            "graphs",
            "The same, compiled, against a bare loop that is one CUDA graph: the limit where launches decide.",
            limit("graphs", "--compile", "true"),
            6,
            "mnist",
        ),
        *(
            Part(
                model,
                "Images per second, to hold against the peak.",
                compare(
                    model,
                    *("--dataset", "synthetic", "--model", model, *words),
                    *("--epochs", "2", "--mode", "tuned", "--repeats", "1"),
                ),
                4,
            )
            for model, words in RESIDUAL.items()
        ),
        Part(
            "mnist-99",
            "Training time to 99 % on MNIST, ten seeds.",
            compare(
                "mnist-99",
                *("--config", "configs/mnist-99-percent-soon.yaml", "--target-accuracy", "0.99"),
                *("--repeats", "1", "--seeds", *map(str, range(10))),
            ),
            6,
            "mnist",
        ),
        Part(
            "cifar10-94",
            "Training time to 94 % on CIFAR-10. One A100 takes 2.0 s (hiverge/cifar10-speedrun, whose clock counts"
            " whitening, training and evaluation, but no compilation) or 2.6 s (airbench94_muon).",
            compare("cifar10-94", *CIFAR_94, "--mode", "tuned", "--target-accuracy", "0.94", "--repeats", "1"),
            6,
            "cifar10",
        ),
        *(
            Part(f"beside {path.stem}", "The same task on the same card.", (sys.executable, str(path)), 6)
            for path in options.beside
        ),
    ]
    if "pt" in names:
        two = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "pt_impl")
        parts.append(
            Part(
                "two-processes",
                "Two processes on one GPU: one line says why that can't be.",
                (sys.executable, *two, *device, "--epochs", "1", "--run-dir", str(folder / "two-processes")),
                2,
            )
        )
    return parts


def run_part(part: Part, folder: Path, seconds_left: float) -> dict[str, Any]:
    """Runs a part to its end, or to that of its time; returns what is known of it."""
    begun = time.monotonic()
    limit = min(60 * part.minutes, seconds_left)
    path = folder / f"{part.name}.log"
    status = "ok"
    with open(path, "wb") as log:
        process = subprocess.Popen(
            part.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            process.wait(limit)
            status = exit_failure(process.returncode) or "ok"
        except subprocess.TimeoutExpired:
            status = f"ended after {limit:.0f} s"
        finally:
            end_process_group(process)
    return {
        "name": part.name,
        "command": shlex.join(["python", *part.command[1:]]),
        "status": status,
        "seconds": time.monotonic() - begun,
        "runs": [_facts(path, folder / part.name) for path in sorted((folder / part.name).glob("runs/**/result.json"))],
    }


def _facts(path: Path, folder: Path) -> dict[str, Any]:
    """What a run has measured of the device, and how much rounding explains of its audited steps at most."""
    result, audits = read_result(path.parent), read_audits(path.parent)
    speed = result.images_per_second
    return {
        "run": str(path.parent.relative_to(folder / "runs")),
        "images_per_second": speed,
        "tflops": speed and PASSES * result.flops_per_image * speed / 1e12,
        "device_peak_memory_mib": result.device_peak_memory_bytes and result.device_peak_memory_bytes / 2**20,
        "joules_per_image": result.joules_per_image,
        "rounding_explains": max((audit.explained for audit in audits.steps), default=None) if audits else None,
    }


def to_page(device: str, parts: list[Part], found: list[dict[str, Any]], left_out: list[str], folder: Path) -> str:
    """`gpu.md`: each part's command, how it has ended, the end of what it has printed, and its runs."""
    lines = [f"# {device}", "", "| part | seconds | ended |", "| --- | ---: | --- |"]
    lines += [f"| {result['name']} | {result['seconds']:.0f} | {result['status']} |" for result in found]
    lines += [f"| {words} |  | left out |" for words in left_out]
    for part, result in zip(parts, found, strict=True):
        lines += ["", f"## {part.name}", "", part.shows, "", "```", result["command"], "```", ""]
        said = (folder / f"{part.name}.log").read_text(errors="replace").splitlines()
        lines += ["```", *said[-LINES:], "```"]
        if result["runs"]:
            names = list(result["runs"][0])
            lines += [
                "",
                f"| {' | '.join(name.replace('_', ' ') for name in names)} |",
                f"| ---{' | ---:' * (len(names) - 1)} |",
            ]
            lines += [f"| {' | '.join(map(_shown, run.values()))} |" for run in result["runs"]]
    return "\n".join(lines) + "\n"


def _shown(value: str | float | None) -> str:
    return (
        value if isinstance(value, str) else "" if value is None else f"{value:.3g}" if value < 100 else f"{value:,.0f}"
    )


def installed(name: Implementation) -> bool:
    """Whether an implementation's framework is there, in its own environment or in this one."""
    code = f"import importlib.util as u, sys; sys.exit(u.find_spec({IMPLEMENTATIONS[name].package!r}) is None)"
    return subprocess.run([interpreter_of(name), "-c", code], check=False).returncode == 0


def main() -> None:
    options = parse_options(GpuConfig, "python -m benchmarks.gpu", "Tries and measures everything that needs a GPU.")
    console = Console(highlight=False)
    if options.accelerator == "gpu" and not has_gpu():
        raise UserError("--accelerator gpu: nvidia-smi lists no GPU; --accelerator cpu tries this program")
    names = [name for name in options.implementations if installed(name)]
    if not names:
        raise UserError(f"--implementations {' '.join(options.implementations)}: none of their frameworks is installed")
    folder = make_folder(options, "gpu")
    os.environ["TEST_DATA_DIR"] = str(options.data_dir.absolute())
    device = list_gpus()[0] if options.accelerator == "gpu" else cpu_name()
    left_out = [f"{name}, which is not installed" for name in options.implementations if name not in names]
    end = time.monotonic() + 60 * options.minutes
    done: list[Part] = []
    found: list[dict[str, Any]] = []
    for part in make_parts(options, names, folder):
        if part.name.partition(" ")[0] not in options.parts:
            continue
        if part.dataset and not _has(part.dataset, options.data_dir):
            left_out.append(f"{part.name}, whose data set is not in {options.data_dir}")
            continue
        if (left := end - time.monotonic()) < 5:
            left_out.append(f"{part.name}, for want of time")
            continue
        console.print(f"{part.name}: at most {min(60 * part.minutes, left):.0f} s", end="", soft_wrap=True)
        result = run_part(part, folder, left)
        console.print(f"; {result['status']} after {result['seconds']:.0f} s", soft_wrap=True)
        done.append(part)
        found.append(result)
        # After each part: whatever ends this program, what is done is kept.
        write_text(folder / "gpu.md", to_page(device, done, found, left_out, folder))
    write_text(folder / "gpu.md", to_page(device, done, found, left_out, folder))
    write_document("gpu", folder, console, {"device": device, "parts": found, "left_out": left_out})
    console.print(f"page: {folder / 'gpu.md'}")


def _has(dataset: DatasetName, data_dir: Path) -> bool:
    sources = dataset_entry(TrainConfig(dataset=dataset)).sources
    return any(source.is_complete(data_dir) for source in sources)


if __name__ == "__main__":
    with as_program("python -m benchmarks.gpu"):
        main()
