"""Chooses the same kind of device for all: a CPU run against a GPU run would compare machines, not frameworks."""

import json
import tempfile
from contextlib import suppress
from pathlib import Path

from common.implementations import implementation_title
from common.platform.errors import UserError
from common.platform.machine import has_gpu
from common.record.results import CONFIG_FILE
from common.resolve import SEES_NO_GPU
from common.spec.options import DEVICES_OF, TrainConfig
from comparison.run.program import Program, RunEnd
from comparison.run.runner import Follower, run_programs
from comparison.run.store import LOG_FILE


def same_devices(config: TrainConfig, interpreters: dict[str, str], timeout: float) -> tuple[TrainConfig, list[str]]:
    """`config` with `--accelerator auto` replaced by devices that all implementations can use, and warnings.

    If the machine has an NVIDIA GPU, `--dry-run` finds out how many GPUs each implementation sees. If each of them sees
    at least one, GPUs are used: the number asked for, or else as many as every implementation sees. An implementation
    whose `--dry-run` fails for another reason is ignored here; its row will show the reason.

    Raises:
      UserError: `--accelerator gpu`, and an implementation sees no GPU; or more devices are asked for than there are
        GPUs that all implementations can use.
    """
    if config.accelerator == "cpu" or config.stages:
        return config, []
    if config.accelerator == "auto" and not has_gpu():
        return config.replace(accelerator="cpu"), []
    seen, blind = _dry_runs(config, interpreters, timeout)
    if config.accelerator == "gpu" and blind:
        raise UserError(f"--accelerator gpu: {'; '.join(blind)}")
    if blind or not seen:
        why = "; ".join(blind) or "no implementation could say whether it can use this machine's GPU"
        return config.replace(accelerator="cpu"), [f"all rows are trained on the CPU: {why}"]
    devices = min(probed.devices for probed in seen if probed.devices != "auto")
    wanted = DEVICES_OF.get(config.strategy) if config.devices == "auto" else config.devices
    if wanted is not None and wanted > devices:
        option = f"--strategy {config.strategy}" if config.devices == "auto" else f"--devices {config.devices}"
        raise UserError(f"{option}: the implementations can all use {devices} GPUs; --accelerator cpu works without")
    return config.replace(accelerator="gpu", devices=wanted or devices), []


def _dry_runs(config: TrainConfig, interpreters: dict[str, str], timeout: float) -> tuple[list[TrainConfig], list[str]]:
    """The configurations that the implementations resolve, and what those have said that see no GPU."""
    seen, blind = [], []
    with tempfile.TemporaryDirectory() as folder:
        asked = config.replace(dry_run=True, devices="auto", num_nodes=1, strategy="auto", microbatches=1)
        programs = [
            Program(implementation=name, interpreter=interpreter, config=asked.replace(run_dir=Path(folder, name)))
            for name, interpreter in interpreters.items()
        ]

        def look(program: Program, ended: RunEnd) -> None:
            sees_none = SEES_NO_GPU.format(implementation_title(program.implementation))
            with suppress(OSError, ValueError):  # the row will show the reason
                log = (program.run_dir / LOG_FILE).read_text(errors="replace")
                if sees_none in log:
                    blind.append(sees_none + log.partition(sees_none)[2].partition("\n")[0])
                elif ended.failure is None:
                    seen.append(TrainConfig(**json.loads((program.run_dir / CONFIG_FILE).read_text())))

        run_programs(programs, timeout, Follower(look), at_once=len(programs))
    return seen, blind
