"""The fields of a result: facts of the experiment, measurements, process, machine, versions and git commit."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from common.experiment import Experiment
from common.platform.files import arrays_sha256
from common.platform.machine import REPOSITORY, describe_machine
from common.platform.processor import cpu_instruction_limit, processor_note
from common.record.clock import RunClock
from common.record.monitor import Measured


def experiment_facts(experiment: Experiment) -> dict[str, Any]:
    """The fields of `RunResult` that follow from the experiment."""
    config = experiment.config
    initial = {name: array.astype(np.float64) for name, array in experiment.initial_weights.items()}
    return {
        "config": config,
        "config_sha256": config.sha256(),
        "data_sha256": experiment.dataset.sha256,
        "initial_weights_sha256": arrays_sha256(initial),
        "num_parameters": experiment.network.num_parameters,
        "flops_per_image": experiment.network.flops_per_image,
        "class_names": experiment.dataset.class_names,
        "train_count": experiment.plan.train_size,
        "accelerator": config.accelerator,
        "devices": config.all_devices,
        "threads_per_device": config.threads_per_device,
    }


def measurement_facts(
    clock: RunClock, measured: Measured, energy_source: str | None, images: int, speed: float | None
) -> dict[str, Any]:
    """The fields of `RunResult` that are measured.

    Args:
      energy_source: `RAPL` or `NVML`; None if there is none.
      images: number of images trained on after start-up.
      speed: images per second of the timed steps; None if there are none.
    """
    timeline, joules = clock.timeline, measured.joules
    return {
        "started": timeline.started,
        "startup_seconds": clock.startup_seconds,
        "epoch_train_seconds": clock.epoch_train_seconds,
        "eval_seconds": clock.eval_seconds,
        "wall_seconds": clock.end(),
        "phase_seconds": timeline.seconds,
        "images_per_second": speed,
        "peak_memory_bytes": measured.peak_memory_bytes,
        "cpu_utilisation": measured.cpu_utilisation,
        "gpu_utilisation": measured.gpu_utilisation,
        "training_other_load": measured.other_load,
        "joules_per_image": joules / images if joules is not None and images else None,
        "energy_source": energy_source,
    }


def of_process(experiment: Experiment, packages: tuple[str, ...]) -> dict[str, Any]:
    """The fields of `RunResult` about the process and its machine; `packages` are those of the framework."""
    on_cpu = experiment.config.accelerator == "cpu"
    return {
        "cpu_instructions": cpu_instruction_limit() if on_cpu else None,
        "processor_note": processor_note() if on_cpu else None,
        "machine": describe_machine(),
        "versions": versions("numpy", *packages),
        "git": git_state(),
    }


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python, the platform and the packages named."""
    by_package = {"python": platform.python_version(), "platform": platform.platform()}
    return by_package | {name: importlib.metadata.version(name) for name in packages}


def git_state() -> dict[str, str | bool] | None:
    """{"commit": hex, "dirty": whether files differ from it}; None outside a git checkout."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(REPOSITORY), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != REPOSITORY:
            return None
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None
