"""Replaces "auto" in the settings by values for this machine, once, before any data are read."""

from dataclasses import dataclass
from typing import Any

from common.data.datasets import images_nbytes
from common.platform.errors import UserError
from common.platform.launch import Launch
from common.platform.processor import (
    HALF_PRECISIONS,
    announced,
    cpu_has_bf16,
    cpu_name,
    half_precision_crashes,
    processor_note,
    try_out,
)
from common.spec.device_options import Precision
from common.spec.options import TrainConfig
from common.spec.update_rule import spelled_out

MAX_RESIDENT_BYTES = 512 * 2**20  # largest data set that "auto" in mode tuned puts into every device's memory


@dataclass(frozen=True)
class Settings:
    """The values that `--mode` chooses for settings left at auto; the defaults are those of mode plain."""

    precision: Precision = "32"
    compile: bool = False
    tf32: bool = False


def resolve_settings(config: TrainConfig, tuned: Settings) -> TrainConfig:
    """Returns `config` with precision, compile, tf32 and data_on resolved.

    Args:
      tuned: values for settings left at auto in mode tuned, on this machine.

    Raises:
      UserError: TF32 on a CPU, which does not have it; half precision on a CPU on which it crashes; a compiled step
        with strategy pipeline, or with synchronised batch normalisation over several replicas.
    """
    if config.tf32 is True and config.accelerator == "cpu":
        raise UserError("--tf32 true: only GPUs have TF32; this run is on the CPU")
    chosen = tuned if config.mode == "tuned" else Settings()
    left: dict[str, Any] = {name: value for name, value in vars(chosen).items() if getattr(config, name) == "auto"}
    if config.data_on == "auto":
        resident = config.mode == "tuned" and images_nbytes(config) <= MAX_RESIDENT_BYTES
        left["data_on"] = "device" if resident else "host"
    config = spelled_out(config.replace(**left))
    if config.compile and config.strategy == "pipeline":
        raise UserError("--compile true: not with --strategy pipeline, whose step is on two devices")
    if config.compile and config.sync_batchnorm and config.num_shards != 1:
        raise UserError("--sync-batchnorm true: a step in which replicas talk can't be compiled; use --compile false")
    return _require_half_precision(config, by_hand="precision" not in left)


def _require_half_precision(config: TrainConfig, by_hand: bool) -> TrainConfig:
    """Returns `config`, with 32 bits instead if half precision crashes on this processor.

    Args:
      config: "auto" is already replaced.
      by_hand: whether the user has chosen the precision.

    Raises:
      UserError: the user has chosen a precision that crashes here with every instruction set.
    """
    if "cpu" not in config.stages_on or config.precision not in HALF_PRECISIONS or not half_precision_crashes():
        return config
    if not by_hand:
        if Launch.read().is_first:
            print(f"note: 32-bit: {processor_note()}", flush=True)
        return config.replace(precision="32")
    raise UserError(
        f"--precision {config.precision}: this processor ({cpu_name()}) claims to have {', '.join(announced())}, but"
        " half precision crashes (SIGILL) with every instruction set; use --precision 32"
    )


def describe_settings(config: TrainConfig) -> str:
    """The settings of a resolved configuration, to display: `32-bit`, `bf16-mixed, compiled`, `32-bit, fsdp`."""
    found = [f"{config.precision}-bit" if config.precision.isdecimal() else config.precision]
    if config.compile is True:
        found.append("compiled")
    if config.tf32 is True and config.precision != "64":
        found.append("TF32")
    usual = ("single_device",) if config.num_shards == 1 else ("ddp", "mirrored", "multi_worker_mirrored")
    if config.strategy not in usual:  # "auto" would not choose it
        found.append(config.strategy)
    if config.microbatches > 1:
        found.append(f"{config.microbatches} microbatches")
    return ", ".join(found)


def describe_batch(config: TrainConfig) -> str:
    """The batch size, to display: `batch 64`, `batch 16, 4 accumulated`."""
    accumulated = f", {config.accumulate_grad_batches} accumulated" if config.accumulate_grad_batches > 1 else ""
    return f"batch {config.batch_size}{accumulated}"


def describe_devices(config: TrainConfig, device_name: str) -> str:
    """The devices of a resolved configuration, to display: `2 x cpu (AMD EPYC), 1 CPU thread each`."""
    threads = f"{config.threads_per_device} CPU thread{'s' if config.threads_per_device != 1 else ''} each"
    kinds = " and ".join(config.stages) if config.stages else f"{config.devices} x {config.accelerator}"
    nodes = f"{config.nodes} nodes with " if config.nodes > 1 else ""
    return f"{nodes}{kinds} ({device_name}), {threads}"


# --- Half precision, before the framework is imported ---


def bf16_helps(config: TrainConfig) -> bool:
    """Whether `--mode tuned` uses bf16-mixed on this CPU, if it works here; measured in docs/performance.md.

    In the small layers for digits, the conversions to bfloat16 cost more time than they save.
    """
    return cpu_has_bf16() and config.dataset != "digits"


def prepare_processor(config: TrainConfig, package: str, probe_module: str) -> None:
    """Tests half precision if the run may use it on the CPU, see `try_out`; otherwise does nothing.

    Args:
      config: as given, before "auto" is replaced; `resolve_settings` uses the result of the test.
    """
    if config.accelerator == "gpu" and not config.stages:
        return
    if config.precision in HALF_PRECISIONS:
        try_out((config.precision,), package, probe_module)
    elif config.precision == "auto" and config.mode == "tuned" and bf16_helps(config):
        try_out(("bf16-mixed",), package, probe_module)
