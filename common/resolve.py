"""Replaces "auto" in devices and settings by values for this machine, before any data are read, and describes them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from common.data.datasets import data_spec
from common.platform.errors import UserError
from common.platform.launch import Launch
from common.platform.machine import has_gpu, num_cores, why_no_gpu
from common.platform.processor import HALF_PRECISIONS, cpu_has_bf16, try_out
from common.spec.options import DATASET_NAMES, DEVICES_OF, Accelerator, Precision, Strategy, TrainConfig
from common.spec.update_rule import spelled_out

# --- Devices, nodes and strategy ---

SEES_NO_GPU = "{} sees no GPU"

# How an implementation is started on several nodes.
LAUNCHERS = {
    "PyTorch": "torchrun, srun or mpirun",
    "Lightning": "torchrun, srun or mpirun; or by hand, with NODE_RANK, MASTER_ADDR and MASTER_PORT set on each",
    "JAX": "torchrun, srun or mpirun",
    "TensorFlow": "srun or mpirun; or by hand, with TF_CONFIG set on each",
}


def resolve_devices(
    config: TrainConfig,
    title: str,
    num_gpus: int,
    launch: Launch,
    strategies: Sequence[Strategy],
    cuda: str | None = None,
) -> TrainConfig:
    """Returns `config` with every "auto" of its device options replaced.

    Args:
      title: name of the framework, for messages.
      num_gpus: number of GPUs that the framework can use on this node.
      strategies: the framework's strategies for several devices. With "auto" the first one is used. Processes that a
        launcher has started use multi_worker_mirrored instead if the strategies include mirrored.
      cuda: the version of CUDA that the framework is built for; None: it is built without.

    Raises UserError if the accelerator, strategy, number of devices or number of nodes is not available.
    """
    strategy, devices = config.strategy, config.devices
    if strategy not in ("auto", "single_device", *strategies):
        known = ", ".join(("single_device", *strategies))
        raise UserError(f"--strategy {strategy}: {title} does not have it; use {known}")
    nodes = _resolve_nodes(config, title, launch)
    accelerator = _resolve_accelerator(config, title, num_gpus, cuda, launch)
    if launch.world_size is not None:
        strategy, devices = _launched(config, title, num_gpus if accelerator == "gpu" else 0, launch, strategies)
    else:
        if devices == "auto":
            devices = DEVICES_OF.get(strategy) or (num_gpus if accelerator == "gpu" else 1)
        if devices * nodes > 1 and not strategies:
            raise UserError(f"--devices {devices}: {title} trains on one device")
        if strategy == "auto":
            strategy = strategies[0] if devices * nodes > 1 else "single_device"
    threads = config.threads_per_device
    if threads == "auto":
        threads = max(1, num_cores() // devices)
    resolved = {"accelerator": accelerator, "devices": devices, "num_nodes": nodes, "strategy": strategy}
    config = config.replace(**resolved, threads_per_device=threads)
    _check_devices(config, title, num_gpus, launch)
    return config


def _resolve_accelerator(
    config: TrainConfig, title: str, num_gpus: int, cuda: str | None, launch: Launch
) -> Accelerator:
    """The accelerator. Raises UserError if a GPU is asked for and the framework sees none.

    With "auto", a machine whose GPU the framework can't use is worth a warning: it trains on the CPU.
    """
    accelerator = config.accelerator
    if config.stages:
        accelerator = "gpu" if "gpu" in config.stages else "cpu"
    if accelerator == "cpu" or num_gpus:
        return "gpu" if accelerator == "auto" else accelerator
    problem = SEES_NO_GPU.format(title)
    told = accelerator == "gpu" or launch.is_first
    why = f", although this machine has one: {why_no_gpu(cuda)}" if told and has_gpu() else ""
    if accelerator == "gpu":
        option = f"--stages {' '.join(config.stages)}" if config.stages else "--accelerator gpu"
        raise UserError(f"{option}: {problem}{why or ' on this machine'}")
    if why:
        print(f"warning: {problem}{why}", flush=True)
    return "cpu"


def _resolve_nodes(config: TrainConfig, title: str, launch: Launch) -> int:
    """The number of nodes. Raises UserError if a launcher says otherwise, or if the nodes' processes are missing."""
    nodes, launched = config.num_nodes, launch.num_nodes
    if nodes == "auto":
        nodes = launched or 1
    if launched is not None:
        if nodes != launched:
            on = f"{launch.started_by} has started processes on {launched}"
            raise UserError(f"--num-nodes {nodes}: {on}; leave the option out")
        return nodes
    if launch.node >= nodes:
        there = f"by --num-nodes {nodes} the nodes are 0 to {nodes - 1}" if nodes != 1 else "of one node it is 0"
        raise UserError(f"NODE_RANK {launch.node}: {there}; --num-nodes, on every node, says how many there are")
    if nodes > 1:
        if title not in LAUNCHERS:
            raise UserError(f"--num-nodes {nodes}: {title} trains on one node only; tf_impl trains on several")
        if title != "Lightning" or not {"NODE_RANK", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
            raise UserError(f"--num-nodes {nodes}: start {title} on every node with {LAUNCHERS[title]}")
    return nodes


def _launched(
    config: TrainConfig, title: str, num_gpus: int, launch: Launch, strategies: Sequence[Strategy]
) -> tuple[Strategy, int]:
    """Strategy and number of devices per node, for processes that a launcher has started.

    Args:
      num_gpus: number of GPUs of this node that may be used; 0 on the CPU.

    Raises UserError if the framework has no strategy for these processes, or --devices asks for another number.
    """
    processes, launcher, strategy = launch.local_world_size, launch.started_by, config.strategy
    assert processes is not None
    mirrored = "mirrored" in strategies
    if strategy == "auto":
        strategy = "multi_worker_mirrored" if mirrored else strategies[0]
    if strategy not in strategies or strategy in ("mirrored", "dp") or (mirrored and strategy == "pipeline"):
        raise UserError(f"{launcher} has started {launch.world_size} processes; {title} needs one: use --devices N")
    if not mirrored and launcher == "TF_CONFIG":
        raise UserError(f"TF_CONFIG names {launch.world_size} workers; {title} is started by {LAUNCHERS[title]}")
    # In TensorFlow, each process has an equal share of its node's GPUs. Otherwise, each process has one device.
    devices = max(processes, num_gpus) if mirrored else processes
    if config.devices not in ("auto", devices) and not (mirrored and num_gpus):
        on = " on this node" if launch.num_nodes != 1 else ""
        raise UserError(
            f"--devices {config.devices}: {launcher} has started {processes} processes{on}; leave the option out"
        )
    devices = devices if config.devices == "auto" else config.devices
    if devices % processes:
        raise UserError(f"--devices {devices}: {launcher} has started {processes} processes, which share no device")
    return strategy, devices


def _check_devices(config: TrainConfig, title: str, num_gpus: int, launch: Launch) -> None:
    """Raises UserError if the options of devices, all of them resolved, do not fit each other or this machine."""
    devices, strategy = config.devices, config.strategy
    if config.num_nodes != 1 and strategy in ("single_device", "dp", "pipeline"):
        raise UserError(f"--strategy {strategy}: is for one node, not {config.num_nodes}")
    if strategy == "multi_worker_mirrored" and launch.world_size is None:
        raise UserError(f"--strategy {strategy}: is for several processes, started by {LAUNCHERS['TensorFlow']}")
    if strategy == "single_device" and devices != 1:
        raise UserError(f"--strategy single_device: is for one device, not --devices {devices}")
    if strategy == "pipeline" and devices != 2:
        raise UserError(f"--strategy pipeline: has two stages, a device each; not --devices {devices}")
    if strategy == "dp" and config.accelerator == "cpu":
        raise UserError("--strategy dp: torch.nn.DataParallel spreads a batch over GPUs only; on the CPU use ddp")
    if strategy == "dp" and (config.compile is True or config.precision == "bf16-mixed"):
        option = "--compile true" if config.compile is True else "--precision bf16-mixed"
        raise UserError(f"{option}: not with --strategy dp, whose threads begin with settings of their own; use ddp")
    if strategy == "dp" and config.sync_batchnorm:
        raise UserError("--sync-batchnorm true: not with --strategy dp, whose replicas are threads; use ddp")
    if strategy == "pipeline" and config.num_gpus > num_gpus:
        raise UserError(
            f"--strategy pipeline: needs two GPUs, {title} sees {num_gpus}; use --stages cpu gpu, or --accelerator cpu"
        )
    if config.num_gpus > num_gpus:
        gpus = "1 GPU" if num_gpus == 1 else f"{num_gpus} GPUs"
        raise UserError(f"--devices {devices}: {title} sees {gpus} on this machine")


# --- Settings ---


@dataclass(frozen=True)
class AutoSettings:
    """The values that `--mode` chooses for settings left at auto; the defaults are those of plain mode."""

    precision: Precision = "32"
    compile: bool = False
    tf32: bool = False


def resolve_settings(config: TrainConfig, tuned: AutoSettings) -> TrainConfig:
    """Returns `config`, whose devices are resolved, with precision, compile and tf32 resolved.

    Args:
      tuned: values for settings left at auto in mode tuned, on this machine.

    Raises UserError for TF32 on a CPU, which does not have it; a compiled step with strategy pipeline, or with
    synchronised batch normalisation over several replicas; an option that --mode tutorial does not have.
    """
    if config.tf32 is True and config.accelerator == "cpu":
        raise UserError("--tf32 true: only GPUs have TF32; this run is on the CPU")
    chosen = tuned if config.mode == "tuned" else AutoSettings()
    left = {name: value for name, value in vars(chosen).items() if getattr(config, name) == "auto"}
    config = spelled_out(config.replace(**left))
    if config.compile and config.strategy == "pipeline":
        raise UserError("--compile true: not with --strategy pipeline, whose step is on two devices")
    if config.compile and config.sync_batchnorm and config.num_shards != 1:
        raise UserError(
            "--sync-batchnorm true: cannot be compiled, since replicas communicate inside the step; use --compile false"
        )
    if config.mode == "tutorial" and (obstacle := tutorial_obstacle(config)):
        raise UserError(obstacle)
    return config


def tutorial_obstacle(config: TrainConfig) -> str | None:
    """The option that the tutorials' programs don't have, and what to do; None if they can train `config`."""
    if config.strategy in ("dp", "fsdp", "pipeline"):
        return f"--strategy {config.strategy}: not with --mode tutorial; use --mode plain"
    if config.accumulate_grad_batches > 1:
        return (
            f"--accumulate-grad-batches {config.accumulate_grad_batches}: not with --mode tutorial, which makes a step"
            " of each batch; use --mode plain"
        )
    if config.batch_size % config.num_shards:
        return (
            f"--batch-size {config.batch_size}: with --mode tutorial, should be a multiple of the number of devices,"
            f" {config.num_shards}"
        )
    data = data_spec(config) if config.dataset == "synthetic" or config.dataset not in DATASET_NAMES else None
    if data and (data.is_float or data.image_shape[2] not in (1, 3)):
        return "--mode tutorial: its programs load pictures, uint8 with 1 or 3 channels; use --mode plain"
    return None


def tuned_settings(config: TrainConfig) -> AutoSettings:
    """What `--mode tuned` makes of settings left at auto. On the CPU nothing is compiled: it was slower.

    On a GPU, a step of a small network takes so short a time that conversions to bfloat16, which are further kernels,
    cost more than they save: docs/performance.md, "GPU". Strategy dp does not have them, see `_check_devices`.
    """
    if "cpu" in config.stages_on:
        return AutoSettings("bf16-mixed" if bf16_helps(config) else "32")
    in_half = config.model.startswith("resnet") and config.strategy != "dp"
    return AutoSettings("bf16-mixed" if in_half else "32", tf32=True)


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
    precision = config.precision
    if precision == "auto" and config.mode == "tuned" and bf16_helps(config):
        precision = "bf16-mixed"
    if precision in HALF_PRECISIONS:
        try_out(precision, package, probe_module)


# --- To display ---


def describe_settings(config: TrainConfig) -> str:
    """The settings of a resolved configuration, to display: `32-bit`, `bf16-mixed, compiled`, `32-bit, fsdp`."""
    settings = [f"{config.precision}-bit" if config.precision.isdecimal() else config.precision]
    if config.compile is True:
        settings.append("compiled")
    if config.tf32 is True and config.precision != "64":
        settings.append("TF32")
    usual = ("single_device",) if config.num_shards == 1 else ("ddp", "mirrored", "multi_worker_mirrored")
    if config.strategy not in usual:  # "auto" would not choose it
        settings.append(config.strategy)
    if config.microbatches > 1:
        settings.append(f"{config.microbatches} microbatches")
    return ", ".join(settings)


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
