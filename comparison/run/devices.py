"""Chooses the same kind of device for all: a CPU run against a GPU run would compare machines, not frameworks."""

import json
import tempfile
from pathlib import Path

from common.implementations import implementation_title
from common.platform.errors import UserError
from common.platform.gpus import has_gpu
from common.record.results import CONFIG_FILE
from common.resolve import BLIND, WARNING
from common.spec.options import DEVICES_OF, TrainConfig
from comparison.run.program import Program
from comparison.run.runner import run_process
from comparison.run.store import LOG_FILE


def same_devices(config: TrainConfig, interpreters: dict[str, str], timeout: float) -> tuple[TrainConfig, list[str]]:
    """`config` with `--accelerator auto` replaced by devices that all implementations can use, and warnings.

    If the machine has an NVIDIA GPU, `--dry-run` finds out how many GPUs each implementation sees. If each of them sees
    at least one, GPUs are used: the number asked for, or else as many as every implementation sees. An implementation
    whose `--dry-run` fails is ignored here; its row will show the reason.

    Raises:
      UserError: more devices are asked for than there are GPUs that all implementations can use.
    """
    if config.accelerator != "auto" or config.stages:
        return config, []
    if not has_gpu():
        return config.replace(accelerator="cpu"), []
    seen: dict[str, TrainConfig] = {}
    warnings = []
    for name, interpreter in interpreters.items():
        with tempfile.TemporaryDirectory() as folder:
            asked = config.replace(run_dir=Path(folder), dry_run=True, devices="auto", strategy="auto", microbatches=1)
            try:
                run_process(
                    Program(implementation=name, interpreter=interpreter, config=asked), timeout, lambda _: None
                )
                seen[name] = TrainConfig(**json.loads((Path(folder) / CONFIG_FILE).read_text()))
                if seen[name].accelerator == "cpu":
                    warnings.append(_reason(name, Path(folder) / LOG_FILE))
            except (UserError, OSError, ValueError):
                continue
    if warnings or not seen:
        why = "; ".join(warnings) or "no implementation could say whether it can use this machine's GPU"
        return config.replace(accelerator="cpu"), [f"all rows are trained on the CPU: {why}"]
    devices = min(probed.devices for probed in seen.values() if probed.devices != "auto")
    wanted = DEVICES_OF.get(config.strategy) if config.devices == "auto" else config.devices
    if wanted is not None and wanted > devices:
        option = f"--strategy {config.strategy}" if config.devices == "auto" else f"--devices {config.devices}"
        raise UserError(f"{option}: the implementations can all use {devices} GPUs; --accelerator cpu works without")
    return config.replace(accelerator="gpu", devices=wanted or devices), []


def _reason(name: str, log: Path) -> str:
    """What an implementation has said of the GPU that it can't use."""
    blind = BLIND.format(implementation_title(name))
    said = [line.removeprefix(WARNING) for line in log.read_text(errors="replace").splitlines()]
    return next((line for line in said if line.startswith(blind)), blind)
