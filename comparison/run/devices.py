"""Chooses the same kind of device for all: a CPU run against a GPU run would compare machines, not frameworks."""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from rich.console import Console

from common.platform.errors import UserError
from common.record.results import CONFIG_FILE
from common.spec.options import DEVICES_OF, TrainConfig
from comparison.run.program import Program
from comparison.run.runner import run_process


def same_devices(config: TrainConfig, interpreters: dict[str, str], timeout: float, console: Console) -> TrainConfig:
    """`config` with `--accelerator auto` replaced by devices that all implementations can use.

    If the machine has an NVIDIA GPU, `--dry-run` finds out how many GPUs each implementation sees. If each of them sees
    at least one, GPUs are used: the number asked for, or else as many as every implementation sees. An implementation
    whose `--dry-run` fails is ignored here; its row will show the reason.

    Raises:
      UserError: more devices are asked for than there are GPUs that all implementations can use.
    """
    if config.accelerator != "auto" or config.stages:
        return config
    if not has_gpu():
        return config.replace(accelerator="cpu")
    seen: dict[str, TrainConfig] = {}
    for name, interpreter in interpreters.items():
        with tempfile.TemporaryDirectory() as folder:
            asked = config.replace(run_dir=Path(folder), dry_run=True, devices="auto", strategy="auto", microbatches=1)
            try:
                run_process(
                    Program(implementation=name, interpreter=interpreter, config=asked), timeout, lambda _: None
                )
                seen[name] = TrainConfig(**json.loads((Path(folder) / CONFIG_FILE).read_text()))
            except (UserError, OSError, ValueError):
                continue
    blind = [name for name, probed in seen.items() if probed.accelerator == "cpu"]
    if blind or not seen:
        console.print(
            f"running on the CPU, since there is no GPU for {', '.join(blind) or 'any of them'}", soft_wrap=True
        )
        return config.replace(accelerator="cpu")
    devices = min(probed.devices for probed in seen.values() if probed.devices != "auto")
    wanted = DEVICES_OF.get(config.strategy) if config.devices == "auto" else config.devices
    if wanted is not None and wanted > devices:
        option = f"--strategy {config.strategy}" if config.devices == "auto" else f"--devices {config.devices}"
        raise UserError(f"{option}: the implementations can all use {devices} GPUs; --accelerator cpu works without")
    return config.replace(accelerator="gpu", devices=wanted or devices)


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU, even if the frameworks can't use it."""
    if shutil.which("nvidia-smi") is None:
        return False
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return listed.returncode == 0 and "GPU " in listed.stdout


def list_gpus() -> list[str]:
    """Name and driver of each NVIDIA GPU."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
