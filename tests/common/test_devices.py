import os

import pytest

from common.platform import gpus
from common.platform.errors import UserError
from common.platform.launch import Launch
from common.platform.machine import num_cores
from common.resolve import resolve_devices
from common.spec.options import TrainConfig

ALONE = Launch.read({})
TORCH = ("ddp", "dp", "fsdp", "pipeline")
TENSORFLOW = ("mirrored", "multi_worker_mirrored", "pipeline")


def test_auto_is_one_cpu_replica_without_gpus_and_all_gpus_with_them():
    assert resolve_devices(TrainConfig(), "X", 0, ALONE, TORCH).devices == 1
    found = resolve_devices(TrainConfig(), "X", 4, ALONE, TORCH)
    assert (found.accelerator, found.devices) == ("gpu", 4)
    found = resolve_devices(TrainConfig(accelerator="cpu", devices=2), "X", 4, ALONE, TORCH)
    assert (found.accelerator, found.devices, found.threads_per_device) == ("cpu", 2, max(1, num_cores() // 2))


def started(name="torchrun", processes=3, nodes=1, node=0):
    """The launch of the first process on its node; `processes`: on each node."""
    return Launch(name, node * processes, 0, processes * nodes, processes, node, nodes)


def test_a_launchers_processes_are_the_devices():
    assert resolve_devices(TrainConfig(), "X", 0, started(), TORCH).devices == 3
    with pytest.raises(UserError, match="^--devices 2: torchrun has started 3 processes; leave the option out$"):
        resolve_devices(TrainConfig(devices=2), "X", 0, started(), TORCH)
    with pytest.raises(UserError, match="^torchrun has started 3 processes; X needs one: use --devices N$"):
        resolve_devices(TrainConfig(), "X", 0, started(), ("mirrored",))
    with pytest.raises(UserError, match="^TF_CONFIG names 3 workers; PyTorch is started by torchrun, srun or mpirun$"):
        resolve_devices(TrainConfig(), "PyTorch", 0, started("TF_CONFIG"), TORCH)


def test_nodes_have_as_many_devices_each():
    def found(launch, num_gpus=0, strategies=TORCH, **options):
        config = resolve_devices(TrainConfig(**options), "PyTorch", num_gpus, launch, strategies)
        return config.strategy, config.num_nodes, config.devices, config.num_shards, config.stages_on

    assert found(started(nodes=2)) == ("ddp", 2, 3, 6, ("cpu",) * 3)
    assert found(started(processes=1, nodes=2)) == ("ddp", 2, 1, 2, ("cpu",))
    assert found(started(processes=2, nodes=4, node=3), num_nodes=4) == ("ddp", 4, 2, 8, ("cpu",) * 2)
    # Each of TensorFlow's processes has its share of the node's GPUs.
    assert found(started("Slurm", 1, 2), 4, TENSORFLOW) == ("multi_worker_mirrored", 2, 4, 8, ("gpu",) * 4)
    assert found(started("Slurm", 2, 2), 4, TENSORFLOW) == ("multi_worker_mirrored", 2, 4, 8, ("gpu",) * 4)
    assert found(started("Slurm", 2, 2), 4, TENSORFLOW, devices=2)[1:4] == (2, 2, 4)
    assert found(started("TF_CONFIG", 2, 2), 0, TENSORFLOW) == ("multi_worker_mirrored", 2, 2, 4, ("cpu",) * 2)


@pytest.mark.parametrize(
    ("title", "launch", "options", "message"),
    [
        ("PyTorch", started(nodes=2), {"num_nodes": 3}, "--num-nodes 3: torchrun has started processes on 2; leave"),
        ("PyTorch", started(nodes=2), {"devices": 2}, "--devices 2: torchrun has started 3 processes on this node;"),
        ("PyTorch", ALONE, {"num_nodes": 2}, "--num-nodes 2: start PyTorch on every node with torchrun, srun"),
        ("Lightning", ALONE, {"num_nodes": 2}, "--num-nodes 2: start Lightning on every node with torchrun"),
        ("Keras", ALONE, {"num_nodes": 2}, "--num-nodes 2: Keras trains on one node only; tf_impl trains on several"),
        ("TensorFlow", ALONE, {"num_nodes": 2}, "--num-nodes 2: start TensorFlow on every node with srun or"),
        (
            "TensorFlow",
            ALONE,
            {"strategy": "multi_worker_mirrored"},
            "--strategy multi_worker_mirrored: is for several processes, started by srun or mpirun",
        ),
        ("TensorFlow", started("Slurm"), {"strategy": "pipeline"}, "Slurm has started 3 processes; TensorFlow needs"),
        ("PyTorch", started(processes=2, nodes=2), {"strategy": "pipeline"}, "--strategy pipeline: is for one node"),
        (
            "PyTorch",
            Launch.read({"NODE_RANK": "1"}),
            {},
            "NODE_RANK 1: of one node it is 0; --num-nodes, on every node,",
        ),
    ],
)
def test_nodes_that_nobody_has_started_are_reported(title, launch, options, message):
    with pytest.raises(UserError) as told:
        resolve_devices(TrainConfig(**options), title, 0, launch, TENSORFLOW if title == "TensorFlow" else TORCH)
    assert str(told.value).startswith(message)


@pytest.mark.parametrize(
    ("options", "num_gpus", "message"),
    [
        ({"accelerator": "gpu"}, 0, "--accelerator gpu: X sees no GPU"),
        ({"devices": 3}, 2, "--devices 3: X sees 2 GPUs"),
        ({"devices": 2}, 1, "--devices 2: X sees 1 GPU on this machine"),
        ({"strategy": "pipeline"}, 1, "--strategy pipeline: needs two GPUs, X sees 1; use --stages cpu gpu"),
        ({"strategy": "dp", "compile": True}, 2, "--compile true: not with --strategy dp"),
        ({"strategy": "dp", "precision": "bf16-mixed"}, 2, "--precision bf16-mixed: not with --strategy dp"),
        ({"strategy": "pipeline", "stages": ("cpu", "gpu")}, 0, "--stages cpu gpu: X sees no GPU"),
        (
            {"strategy": "pipeline", "devices": 3},
            0,
            "--strategy pipeline: has two stages, a device each; not --devices 3",
        ),
        (
            {"strategy": "single_device", "devices": 2},
            0,
            "--strategy single_device: is for one device, not --devices 2",
        ),
        (
            {"strategy": "mirrored"},
            0,
            "--strategy mirrored: X does not have it; use single_device, ddp, dp, fsdp, pipeline",
        ),
        ({"strategy": "dp", "devices": 2}, 0, "--strategy dp: torch.nn.DataParallel spreads a batch over GPUs only"),
        ({"strategy": "dp", "sync_batchnorm": True}, 2, "--sync-batchnorm true: not with --strategy dp"),
    ],
)
def test_devices_that_are_not_there_are_reported(options, num_gpus, message):
    with pytest.raises(UserError, match=message):
        resolve_devices(TrainConfig(**options), "X", num_gpus, ALONE, TORCH)


def test_a_strategy_says_how_many_devices_and_shards_there_are():
    def found(num_gpus=0, **options):
        config = resolve_devices(TrainConfig(**options), "X", num_gpus, ALONE, TORCH)
        return config.strategy, config.devices, config.num_shards, config.stages_on

    assert found() == ("single_device", 1, 1, ("cpu",))
    assert found(devices=2) == ("ddp", 2, 2, ("cpu", "cpu"))
    assert found(strategy="ddp") == ("ddp", 1, 1, ("cpu",))
    assert found(num_gpus=2) == ("ddp", 2, 2, ("gpu", "gpu"))
    assert found(num_gpus=2, strategy="single_device") == ("single_device", 1, 1, ("gpu",))
    assert found(num_gpus=2, strategy="dp") == ("dp", 2, 1, ("gpu", "gpu"))
    assert found(strategy="pipeline") == ("pipeline", 2, 1, ("cpu", "cpu"))
    assert found(num_gpus=1, strategy="pipeline", stages=("gpu", "cpu")) == ("pipeline", 2, 1, ("gpu", "cpu"))


def on_a_machine_with_a_gpu(monkeypatch, tmp_path, cuda=None):
    """On this machine as if nvidia-smi listed a GPU, whose driver supports this version of CUDA."""
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho GPU 0: made up\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus, "_driver_cuda", lambda: cuda)


@pytest.mark.parametrize(
    ("built_for", "driver", "environment", "reason"),
    [
        (None, (13, 0), {}, "it is built without CUDA; `make environments` in "),
        (
            "12.5.1",
            (13, 0),
            {"CUDA_VISIBLE_DEVICES": "-1"},
            "CUDA_VISIBLE_DEVICES is '-1', which hides all GPUs; unset",
        ),
        ("13.2", (12, 8), {}, "it needs CUDA 13, and the driver supports CUDA 12.8; update the driver"),
        ("99.1", None, {}, "has no CUDA 99 libraries; `make environments` in "),
    ],
)
def test_a_gpu_that_a_framework_cannot_use_is_a_warning_and_if_asked_for_an_error(
    monkeypatch, tmp_path, capsys, built_for, driver, environment, reason
):
    on_a_machine_with_a_gpu(monkeypatch, tmp_path, driver)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert resolve_devices(TrainConfig(), "X", 0, ALONE, TORCH, built_for).accelerator == "cpu"
    said = capsys.readouterr().out
    assert said.startswith("warning: X sees no GPU, although this machine has one: ") and reason in said
    with pytest.raises(UserError) as error:
        resolve_devices(TrainConfig(accelerator="gpu"), "X", 0, ALONE, TORCH, built_for)
    assert f"--accelerator gpu: {said.removeprefix('warning: ')}".strip() == str(error.value)
    assert resolve_devices(TrainConfig(), "X", 2, ALONE, TORCH, built_for).accelerator == "gpu"
    resolve_devices(TrainConfig(accelerator="cpu"), "X", 0, ALONE, TORCH, built_for)
    assert not capsys.readouterr().out
