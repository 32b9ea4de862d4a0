"""Every "auto" of devices and settings, and what is refused before a run starts."""

import os

import pytest

from common.platform.errors import UserError
from common.platform.launch import Launch
from common.platform.machine import num_cores
from common.resolve import AutoSettings, describe_settings, resolve_devices, resolve_settings
from common.spec.options import TrainConfig

ALONE = Launch.read({})
TORCH = ("ddp", "dp", "fsdp", "pipeline")
TENSORFLOW = ("mirrored", "multi_worker_mirrored", "pipeline")
TUNED = AutoSettings("bf16-mixed", compile=True)
PIPELINE = {"strategy": "pipeline"}


def devices(num_gpus=0, launch=ALONE, strategies=TORCH, title="X", cuda=None, **options):
    return resolve_devices(TrainConfig(**options), title, num_gpus, launch, strategies, cuda)


def settings(num_gpus=0, **options):
    return resolve_settings(devices(num_gpus, **options), TUNED)


def started(name="torchrun", processes=3, nodes=1, node=0):
    """The launch of the first process on its node; `processes`: on each node."""
    return Launch(name, node * processes, 0, processes * nodes, processes, node, nodes)


# --- Devices ---


@pytest.mark.parametrize(
    ("num_gpus", "options", "expected"),
    [
        (0, {}, ("single_device", 1, 1, ("cpu",))),
        (0, {"devices": 2}, ("ddp", 2, 2, ("cpu", "cpu"))),
        (4, {}, ("ddp", 4, 4, ("gpu",) * 4)),
        (4, {"accelerator": "cpu", "devices": 2}, ("ddp", 2, 2, ("cpu", "cpu"))),
        (2, {"strategy": "single_device"}, ("single_device", 1, 1, ("gpu",))),
        (2, {"strategy": "dp"}, ("dp", 2, 1, ("gpu", "gpu"))),
        (0, PIPELINE, ("pipeline", 2, 1, ("cpu", "cpu"))),
        (1, {**PIPELINE, "stages": ("gpu", "cpu")}, ("pipeline", 2, 1, ("gpu", "cpu"))),
    ],
)
def test_a_strategy_says_how_many_devices_and_shards_there_are(num_gpus, options, expected):
    found = devices(num_gpus, **options)
    assert (found.strategy, found.devices, found.num_shards, found.stages_on) == expected
    assert found.threads_per_device == max(1, num_cores() // found.devices)


@pytest.mark.parametrize(
    ("launch", "num_gpus", "strategies", "options", "expected"),
    [
        (started(), 0, TORCH, {}, ("ddp", 1, 3, 3)),
        (started(processes=2, nodes=4, node=3), 0, TORCH, {"num_nodes": 4}, ("ddp", 4, 2, 8)),
        # Each of TensorFlow's processes has its share of the node's GPUs.
        (started("Slurm", 1, 2), 4, TENSORFLOW, {}, ("multi_worker_mirrored", 2, 4, 8)),
        (started("Slurm", 2, 2), 4, TENSORFLOW, {}, ("multi_worker_mirrored", 2, 4, 8)),
        (started("TF_CONFIG", 2, 2), 0, TENSORFLOW, {}, ("multi_worker_mirrored", 2, 2, 4)),
    ],
)
def test_a_launchers_processes_are_the_devices(launch, num_gpus, strategies, options, expected):
    found = devices(num_gpus, launch, strategies, **options)
    assert (found.strategy, found.num_nodes, found.devices, found.num_shards) == expected


DP, SINGLE = {"strategy": "dp"}, {"strategy": "single_device"}
TF, MIRRORED, WORKERS = "TensorFlow", {"strategy": "mirrored"}, {"strategy": "multi_worker_mirrored"}
UNCOMPILED = {"sync_batchnorm": True, "compile": True, "devices": 2}
IMPOSSIBLE = [
    (started(), 0, "X", {"devices": 2}, "--devices 2: torchrun has started 3 processes; leave the option out"),
    (started(), 0, TF, MIRRORED, "torchrun has started 3 processes; TensorFlow needs one"),
    (started("TF_CONFIG"), 0, "PyTorch", {}, "TF_CONFIG names 3 workers; PyTorch is started by torchrun, srun or"),
    (started(nodes=2), 0, "X", {"num_nodes": 3}, "--num-nodes 3: torchrun has started processes on 2; leave"),
    (ALONE, 0, "PyTorch", {"num_nodes": 2}, "--num-nodes 2: start PyTorch on every node with torchrun, srun"),
    (ALONE, 0, "Keras", {"num_nodes": 2}, "--num-nodes 2: Keras trains on one node only; tf_impl trains on several"),
    (ALONE, 0, TF, {"num_nodes": 2}, "--num-nodes 2: start TensorFlow on every node with srun or"),
    (ALONE, 0, TF, WORKERS, "--strategy multi_worker_mirrored: is for several processes, started by srun or mpirun"),
    (started(processes=2, nodes=2), 0, "PyTorch", PIPELINE, "--strategy pipeline: is for one node"),
    (Launch.read({"NODE_RANK": "1"}), 0, "X", {}, "NODE_RANK 1: of one node it is 0; --num-nodes, on every"),
    (ALONE, 0, "X", {"accelerator": "gpu"}, "--accelerator gpu: X sees no GPU"),
    (ALONE, 2, "X", {"devices": 3}, "--devices 3: X sees 2 GPUs"),
    (ALONE, 1, "X", PIPELINE, "--strategy pipeline: needs two GPUs, X sees 1; use --stages cpu gpu"),
    (ALONE, 0, "X", {**PIPELINE, "stages": ("cpu", "gpu")}, "--stages cpu gpu: X sees no GPU"),
    (ALONE, 0, "X", {**PIPELINE, "devices": 3}, "--strategy pipeline: has two stages, a device each; not --devices 3"),
    (ALONE, 0, "X", {**PIPELINE, "compile": True}, "--compile true: not with --strategy pipeline"),
    (ALONE, 2, "X", {**DP, "compile": True}, "--compile true: not with --strategy dp"),
    (ALONE, 0, "X", {**DP, "devices": 2}, "--strategy dp: torch.nn.DataParallel spreads a batch over GPUs only"),
    (ALONE, 0, "X", {**SINGLE, "devices": 2}, "--strategy single_device: is for one device, not --devices"),
    (ALONE, 0, "X", MIRRORED, "--strategy mirrored: X does not have it; use single_device, ddp, dp, fsdp, pip"),
    (ALONE, 0, "X", UNCOMPILED, "--sync-batchnorm true: cannot be compiled, since replicas communicate"),
    (ALONE, 0, "X", {"tf32": True}, "--tf32 true: only GPUs have TF32"),
]


@pytest.mark.parametrize(("launch", "num_gpus", "title", "options", "message"), IMPOSSIBLE)
def test_options_that_the_launch_the_machine_or_the_framework_does_not_fit_are_reported(
    launch, num_gpus, title, options, message
):
    strategies = TENSORFLOW if title == TF else TORCH
    with pytest.raises(UserError) as told:
        resolve_settings(devices(num_gpus, launch, strategies, title, **options), TUNED)
    assert str(told.value).startswith(message)


@pytest.mark.parametrize(
    ("cuda", "environment", "reason"),
    [
        (None, {}, "it is built without CUDA; `make environments` in "),
        ("12.5.1", {"CUDA_VISIBLE_DEVICES": "-1"}, "CUDA_VISIBLE_DEVICES is '-1', which hides all GPUs"),
        ("13.2", {}, "it needs the libraries of CUDA 13.2 (`make environments` in "),
    ],
)
def test_a_gpu_that_a_framework_cannot_use_is_a_warning_and_if_asked_for_an_error(
    monkeypatch, tmp_path, capsys, cuda, environment, reason
):
    """On this machine as if nvidia-smi listed a GPU."""
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho GPU 0: made up\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert devices(cuda=cuda).accelerator == "cpu"
    said = capsys.readouterr().out
    assert said.startswith("warning: X sees no GPU, although this machine has one: ") and reason in said
    with pytest.raises(UserError) as error:
        devices(cuda=cuda, accelerator="gpu")
    assert f"--accelerator gpu: {said.removeprefix('warning: ')}".strip() == str(error.value)
    assert devices(2, cuda=cuda).accelerator == "gpu"
    assert devices(cuda=cuda, accelerator="cpu").accelerator == "cpu"
    assert not capsys.readouterr().out


# --- Settings ---


@pytest.mark.parametrize(
    ("num_gpus", "options", "shown"),
    [
        (0, {}, "32-bit"),  # plain mode is the same for all
        (0, {"mode": "tuned"}, "bf16-mixed, compiled"),  # what the implementation says
        (0, {"mode": "tuned", "precision": "32"}, "32-bit, compiled"),  # what is given holds in either mode
        (0, {"mode": "tuned", "compile": False}, "bf16-mixed"),
        (1, {"tf32": True}, "32-bit, TF32"),
        (0, {"devices": 2, "strategy": "fsdp"}, "32-bit, fsdp"),  # a strategy that "auto" would not choose
        (0, {**PIPELINE, "microbatches": 4}, "32-bit, pipeline, 4 microbatches"),
    ],
)
def test_settings_are_those_of_the_mode_unless_given(num_gpus, options, shown):
    assert describe_settings(settings(num_gpus, **options)) == shown
