import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from conftest import REPOSITORY, run

from common.platform.errors import UserError
from common.platform.launch import Launch
from common.platform.machine import git_state, num_cores, peak_memory_bytes, process_start, versions
from common.resolve import resolve_devices
from common.spec.options import TrainConfig


def test_a_process_knows_when_it_was_started():
    code = "import os, time; from common.platform import machine; "
    code += "print(time.perf_counter() - machine.process_start(os.getpid()))"
    started = time.perf_counter()
    age = float(run(sys.executable, "-c", code).stdout)
    elapsed = time.perf_counter() - started
    assert elapsed - 0.5 < age <= elapsed + 0.02  # the kernel counts in hundredths of a second


def test_the_start_of_another_process_can_be_asked_for():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert abs(time.perf_counter() - process_start(process.pid)) < 1
    finally:
        process.communicate()


def test_peak_memory_counts_what_was_freed_again_and_the_children():
    code = """
import subprocess, sys, os
from common.platform.machine import peak_memory_bytes
before = peak_memory_bytes(os.getpid())
block = bytearray(200 * 2**20); del block
alone = peak_memory_bytes(os.getpid())
child = "block = bytearray(100 * 2**20); print(flush=True); input()"
process = subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
process.stdout.readline()
both = peak_memory_bytes(os.getpid())
process.communicate(b"\\n")
print(alone - before, both - alone)
"""
    alone, child = map(int, run(sys.executable, "-c", code, cwd=REPOSITORY).stdout.split())
    assert 150 * 2**20 < alone < 250 * 2**20
    assert 95 * 2**20 < child < 160 * 2**20
    assert peak_memory_bytes(os.getpid()) > 0


def test_versions_and_commit():
    found = versions("numpy")
    assert set(found) == {"python", "platform", "numpy"}
    state = git_state()
    assert state is None or (len(state["commit"]) == 40 and isinstance(state["dirty"], bool))


ALONE = Launch.read({})
TORCH = ("ddp", "dp", "fsdp", "pipeline")


def test_auto_is_one_cpu_replica_without_gpus_and_all_gpus_with_them():
    assert resolve_devices(TrainConfig(), "X", 0, ALONE, TORCH).devices == 1
    found = resolve_devices(TrainConfig(), "X", 4, ALONE, TORCH)
    assert (found.accelerator, found.devices) == ("gpu", 4)
    found = resolve_devices(TrainConfig(accelerator="cpu", devices=2), "X", 4, ALONE, TORCH)
    assert (found.accelerator, found.devices, found.threads_per_device) == ("cpu", 2, max(1, num_cores() // 2))


def test_a_launchers_processes_are_the_devices():
    launch = Launch("torchrun", rank=0, local_rank=0, world_size=3, num_nodes=1, rendezvous="env://", first_pid=1)
    assert resolve_devices(TrainConfig(), "X", 0, launch, TORCH).devices == 3
    with pytest.raises(UserError, match="^--devices 2: torchrun has started 3 processes; leave the option out$"):
        resolve_devices(TrainConfig(devices=2), "X", 0, launch, TORCH)
    with pytest.raises(UserError, match="^torchrun has started 3 processes; X needs one: use --devices N$"):
        resolve_devices(TrainConfig(), "X", 0, launch, ("mirrored", "pipeline"))
    with pytest.raises(UserError, match="^torchrun has started replicas on 3 machines; all of them must be on one$"):
        resolve_devices(TrainConfig(), "X", 0, replace(launch, num_nodes=3), TORCH)


@pytest.mark.parametrize(
    ("options", "num_gpus", "message"),
    [
        ({"accelerator": "gpu"}, 0, "--accelerator gpu: X sees no GPU"),
        ({"devices": 3}, 2, "--devices 3: X sees 2 GPUs"),
        ({"strategy": "pipeline"}, 1, "--strategy pipeline: X sees 1 GPU of two; --stages cpu gpu uses it"),
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
        ({"strategy": "mirrored"}, 0, "--strategy mirrored: X has single_device, ddp, dp, fsdp, pipeline"),
        ({"strategy": "dp", "devices": 2}, 0, "--strategy dp: torch.nn.DataParallel spreads a batch over GPUs only"),
        ({"strategy": "dp", "sync_batchnorm": True}, 2, "--sync-batchnorm true: not with --strategy dp"),
    ],
)
def test_devices_that_are_not_there_are_told(options, num_gpus, message):
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
