"""Lockstep on a GPU, if the machine has one: its runs are compared with the same runs on the CPU."""

import functools
import subprocess
import sys
import tempfile

import numpy as np
import pytest
from agreement import rotated
from conftest import IMPLEMENTATIONS, MODES, program_of, run, train

from common.platform.machine import has_gpu
from common.record.audited_states import STEPS_VARIABLE
from common.record.checkpoints import checkpoint_dirs
from common.record.results import read_result, read_step_losses
from comparison.lockstep import find_departure
from comparison.prove.audits import make_audits

OPTIONS = ("--epochs", 5, "--weight-decay", 1e-3, "--nesterov", "true", "--warmup-steps", 20)
pytestmark = [pytest.mark.skipif(not has_gpu(), reason="no GPU: nvidia-smi lists none"), pytest.mark.xdist_group("gpu")]


@functools.cache
def complaint_of(implementation):
    """What a run on the GPU is refused with, if its framework is not installed, or its build sees no GPU."""
    command = (*program_of(implementation), "--accelerator", "gpu", "--dry-run", "true")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([*command, "--run-dir", f"{folder}/r"], capture_output=True, text=True)
    return done.stderr if done.returncode == 2 else ""


def skip_without_gpu(implementation):
    if complaint := complaint_of(implementation):
        pytest.skip(complaint)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("precision", "steps", "tolerance"), [("64", None, 1e-10), ("32", 10, 1e-5)])
def test_the_gpu_trains_as_the_cpu_does(tmp_path, implementation, mode, precision, steps, tolerance):
    skip_without_gpu(implementation)
    options = (*OPTIONS, "--precision", precision, "--mode", mode, "--compile", "false", "--tf32", "false")
    cpu = train(implementation, tmp_path / "cpu", *options[:-2], "--accelerator", "cpu")
    gpu = train(implementation, tmp_path / "gpu", *options, "--accelerator", "gpu")
    result = read_result(gpu)
    assert result.accelerator == "gpu" and result.device_peak_memory_bytes > 0
    if precision == "64":
        assert find_departure(cpu, gpu, tolerance) is None
    losses, other = (np.array(read_step_losses(folder)[:steps]) for folder in (cpu, gpu))
    assert np.max(np.abs(losses - other) / losses) <= tolerance


WAYS = [
    *(("pt", strategy, ()) for strategy in ("ddp", "fsdp", "dp")),
    *((name, strategy, ()) for name in ("ptl", "jax") for strategy in ("ddp", "fsdp")),
    ("tf", "mirrored", ()),
    *((name, "pipeline", stages) for name in ("tf", "pt", "ptl") for stages in (("cpu", "gpu"), ("gpu", "cpu"))),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("implementation", "strategy", "stages"), WAYS)
def test_a_strategy_on_one_gpu_trains_as_the_cpu_does(tmp_path, implementation, strategy, stages, mode):
    skip_without_gpu(implementation)
    options = (*OPTIONS, "--precision", "64", "--mode", mode, "--compile", "false", "--gradient-clip-val", 0.7)
    cpu = train(implementation, tmp_path / "cpu", *options, "--accelerator", "cpu")
    where = ("--stages", *stages, "--accelerator", "gpu") if stages else ("--accelerator", "gpu", "--devices", 1)
    gpu = train(implementation, tmp_path / "gpu", *options, "--tf32", "false", "--strategy", strategy, *where)
    result = read_result(gpu)
    assert result.accelerator == "gpu" and result.device_peak_memory_bytes > 0
    assert find_departure(cpu, gpu, 1e-10) is None


@pytest.mark.parametrize(
    ("rule", "implementation", "mode", "begins"),
    rotated(["adamw", "adadelta"], IMPLEMENTATIONS, [("plain", "cpu"), ("tuned", "gpu"), ("plain", "gpu")]),
)
def test_what_one_device_has_begun_goes_on_on_the_other(tmp_path, rule, implementation, mode, begins):
    skip_without_gpu(implementation)
    options = (*OPTIONS[:4], "--optimizer", rule, "--precision", "64", "--mode", mode, "--checkpoint-every", 40)
    whole = train("pt", tmp_path / "whole", *options, "--accelerator", "cpu")
    devices = {
        "cpu": ("--accelerator", "cpu"),
        "gpu": ("--accelerator", "gpu", "--tf32", "false", "--compile", "false"),
    }
    first = train(implementation, tmp_path / "first", *options, *devices.pop(begins))
    ((_, other),) = devices.items()
    second = train(implementation, tmp_path / "second", *options, *other, "--resume", next(checkpoint_dirs(first)))
    for run_dir in (first, second):
        assert find_departure(whole, run_dir, 1e-10) is None
    assert read_result(second).resumed_from >= 80


NO_SYNC = """
import sys
import torch
import pt_impl.train as training
from common.main import main

step, steps = training.train_step, 0


def watched(*arguments):
    global steps
    steps += 1
    torch.cuda.set_sync_debug_mode("error" if steps > 3 else "default")  # the first steps set libraries up
    try:
        return step(*arguments)
    finally:
        torch.cuda.set_sync_debug_mode("default")


training.train_step = watched
main("pt")
"""


@pytest.mark.parametrize("precision", ["32", "bf16-mixed", "16-mixed"])
def test_a_step_never_waits_for_the_gpu(tmp_path, precision):
    skip_without_gpu("pt")
    # Tuned mode: in PyTorch's documented way, loss scaling reads from the device in every step, and copies wait.
    options = ("--mode", "tuned", "--precision", precision, "--accelerator", "gpu", "--devices", 1)
    options = (*options, "--compile", "false", "--run-dir", tmp_path / "r")
    run(sys.executable, "-c", NO_SYNC, "--epochs", 3, *options)


SETTINGS = [("--precision", "32", "--tf32", "false"), ("--tf32", "true"), ("--precision", "bf16-mixed")]


@pytest.mark.parametrize(
    ("settings", "implementation", "mode"), rotated(SETTINGS, IMPLEMENTATIONS, [("plain",), ("tuned",)])
)
def test_audits_explain_what_the_gpu_rounds(tmp_path, settings, implementation, mode):
    """With lenet, whose 5 x 5 kernels cuDNN may compute with Winograd's algorithm."""
    skip_without_gpu(implementation)
    steps = (1, 7, 20)
    environment = {STEPS_VARIABLE: " ".join(map(str, steps))}
    options = ("--dataset", "synthetic", "--image-shape", 28, 28, 1, "--model", "lenet", "--train-size", 1280)
    options = (*options, "--batch-size", 128, "--epochs", 2, "--compile", "false", "--mode", mode, *settings)
    run_dir = train(implementation, tmp_path / "run", *options, "--accelerator", "gpu", "--devices", 1, **environment)
    audits = make_audits(run_dir, steps)
    # Of ten steps in one call, as in tuned Keras, rounding in bfloat16 may explain so much that nothing is proved.
    assert any(audit.same for audit in audits.steps), audits
    assert all(audit.same is not False for audit in (*audits.steps, *audits.evaluations)), audits
