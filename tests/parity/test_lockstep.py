"""Lockstep: the same training in every framework and on any number of devices, step by step."""

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from agreement import COLOURS, assert_arrays_agree, assert_the_same, rotated
from conftest import CPU, IMPLEMENTATIONS, MODES, ON_ONE_DEVICE, changed_code, program_of, run, run_program, train

from common.experiment import RESIDENT_VARIABLE
from common.record.results import read_result, read_step_losses
from comparison.lockstep import find_departure

REFERENCE = ("pt", "plain", 1)
WAYS = list(itertools.product(MODES, (1, 2, 3)))
FIRST_BATCH = "first_batch.safetensors"
# At least 100 steps over several epochs, and a training set that the batch size doesn't divide: the last batch has one
# or two examples, so one or two of three devices get none. float32 can't represent the values 0.05 and 0.9 exactly.
CNN = ("--model", "cnn", "--train-size", 418, "--batch-size", 16, "--epochs", 4)
SMALL = (*COLOURS, "--batch-size", 10, "--epochs", 3, "--seed", 2**40 + 3)
AUGMENTED = ("--random-crop", 2, "--horizontal-flip", "true")
RESNET = (*SMALL, "--model", "resnet8", "--learning-rate", 0.01)
# Every network family, every update rule with all its hyperparameters in use, every schedule, every option of a step.
SCENARIOS = {
    "cnn": (*CNN, "--learning-rate", 0.05, "--schedule", "constant", "--momentum", 0.9),
    "lenet": (
        *("--model", "lenet", "--dataset", "synthetic", "--image-shape", 16, 19, 3, "--train-size", 434),
        *("--test-size", 101, "--batch-size", 16, "--epochs", 4, "--learning-rate", 0.05, "--schedule", "cosine"),
        *("--warmup-steps", 20, "--momentum", 0.9, "--nesterov", "true", "--weight-decay", 5e-4),
    ),
    "adam": (
        *(*CNN, "--optimizer", "adam", "--weight-decay", 1e-3),
        *("--schedule", "step", "--step-size", 1, "--gamma", 0.5),
    ),
    "adamw": (
        *(*CNN, "--optimizer", "adamw", "--weight-decay", 0.05, "--learning-rate", 0.003),
        *("--schedule", "one-cycle", "--warmup-steps", 10, "--label-smoothing", 0.1),
    ),
    "adadelta": (
        *(*CNN, "--optimizer", "adadelta", "--weight-decay", 1e-3, "--learning-rate", 0.5),
        *("--warmup-steps", 10, "--schedule", "step", "--label-smoothing", 0.2),
    ),
    "augmented": (*SMALL, *AUGMENTED),
    "both": (*SMALL, *AUGMENTED, "--model", "mnist_dropout", "--learning-rate", 0.01),
    "clipped": (*SMALL, "--learning-rate", 0.02, "--gradient-clip-val", 0.7),
    "synchronised": (*RESNET, "--sync-batchnorm", "true"),
    "resnet8": RESNET,  # each replica normalises its own shards
}
TOLERANCES = {"resnet8": 1e-10, "synchronised": 1e-10}  # for the others 1e-12; observed: 2e-15


@pytest.fixture
def runs(trained):
    """(scenario, precision, implementation, mode, devices) -> run folder."""

    def run_of(scenario, precision, implementation, mode, devices):
        options = ("--precision", precision, "--mode", mode, "--devices", devices, "--save-first-batch", "true")
        return trained(implementation, *SCENARIOS[scenario], *options)

    return run_of


def cases(*ways):
    """The tests of one scenario run in one process, so that they share its runs."""
    return pytest.mark.parametrize(
        ("scenario", "implementation", "mode", "devices"),
        [pytest.param(*way, marks=pytest.mark.xdist_group(way[0])) for way in ways],
    )


@pytest.mark.quick("cnn", "lenet-jax", "adamw-tf", "adam-pt", "both-keras", "both-ptl", "synchronised-pt")
@cases(*(case for case in rotated(SCENARIOS, IMPLEMENTATIONS, WAYS) if case[1:] != REFERENCE))
def test_every_step_agrees(runs, scenario, implementation, mode, devices):
    """Each framework in each scenario, in each mode on each number of devices."""
    other = runs(scenario, "64", implementation, mode, devices)
    reference = runs(scenario, "64", "pt", "plain", devices if scenario == "resnet8" else 1)
    tolerance = TOLERANCES.get(scenario, 1e-12)
    result = read_result(other)
    assert (result.implementation, result.config.mode, result.devices) == (implementation, mode, devices)
    assert "auto" not in (result.config.compile, result.config.tf32) and result.replicas_differ is None
    assert result.num_steps >= 100 and 0 < result.train_count % result.config.batch_size < 3

    message = find_departure(reference, other, tolerance)
    assert message is None, message
    assert_the_same(reference, other, tolerance, result.num_steps)
    assert_arrays_agree(reference, other, FIRST_BATCH, tolerance)  # activations and gradients


def test_without_synchronisation_replicas_part_from_one_device(trained):
    runs = [trained("pt", *RESNET, "--max-steps", 1, "--devices", devices) for devices in (1, 2)]
    ((one,), (two,)) = map(read_step_losses, runs)
    assert abs(one - two) / one > 1e-4  # in the very first step: each shard has its own mean and variance


@pytest.mark.quick("cnn-tf-plain-1")
@cases(*(("cnn", name, "plain", 1) for name in IMPLEMENTATIONS if name != "pt"), ("lenet", "pt", "tuned", 1))
def test_the_first_ten_steps_agree_in_float32(runs, scenario, implementation, mode, devices):
    folders = [runs(scenario, "32", *case) for case in (REFERENCE, (implementation, mode, devices))]
    losses, other = (np.array(read_step_losses(folder)[:10]) for folder in folders)
    differences = np.abs(losses - other) / losses
    assert len(differences) == 10 and differences.max() <= 1e-5, differences
    assert_arrays_agree(*folders, FIRST_BATCH, 1e-5)


@pytest.mark.quick("pt")
@pytest.mark.xdist_group("both")
@pytest.mark.parametrize("implementation", ["tf", "pt", "ptl"])  # Keras has no other way
def test_tuned_batches_gathered_ahead_of_the_steps_are_the_same(runs, tmp_path, implementation):
    options = (*SCENARIOS["both"], "--precision", 64, "--devices", 2, "--mode", "tuned", "--save-first-batch", "true")
    streamed = train(implementation, tmp_path, *options, **{RESIDENT_VARIABLE: "0"})
    message = find_departure(runs("both", "64", *REFERENCE), streamed, 1e-12)
    assert message is None, message


@pytest.mark.slow
@pytest.mark.xdist_group("clipped")
def test_ten_steps_in_a_call_of_jax_are_the_same_ten(runs, tmp_path):
    """As on a GPU; on the CPU, where this is slow, each call takes one step."""
    whether = 'config.accelerator == "gpu" and source is Resident'
    folder = changed_code(tmp_path / "copy", "jax_impl/tuning.py", whether, "source is Resident")
    options = (*SCENARIOS["clipped"], "--precision", 64, "--mode", "tuned", "--devices", 2)
    other = train("jax", tmp_path / "run", *options, "--save-first-batch", "true", cwd=folder)
    assert find_departure(runs("clipped", "64", *REFERENCE), other, 1e-12) is None


@pytest.mark.quick("keras-pt-2")
@pytest.mark.parametrize(
    ("source", "implementation", "devices"),
    [
        *(("keras", "pt", 2), ("tf", "ptl", 1), ("pt", "keras", 3), ("ptl", "tf", 1), ("pt", "jax", 3)),
        *(("pt", name, 3) for name in ON_ONE_DEVICE),
    ],
)
@pytest.mark.xdist_group("cnn")
def test_weights_trained_in_one_give_the_same_answers_in_another(runs, source, implementation, devices):
    """Evaluates on one device, whatever number of devices the weights were trained on."""
    trained = runs("cnn", "64", source, "plain", devices)
    options = ("--weights", trained / "model.safetensors", "--precision", 64, *CPU, "--format", "json")
    found = json.loads(run_program(implementation, "evaluate", *options).stdout)
    result = read_result(trained)
    assert found["test_correct"] == result.test_correct and found["test_count"] == result.test_count == 355
    assert found["test_loss"] == pytest.approx(result.test_loss, rel=1e-12)


@pytest.mark.quick("pt-ddp")
@pytest.mark.parametrize(
    ("implementation", "strategy"),
    [*((name, "ddp") for name in ("pt", "ptl", "jax")), ("pt", "pipeline"), ("ptl", "fsdp")],
)
def test_under_torchrun_it_is_the_same_run(tmp_path, implementation, strategy):
    """Without `train`, since processes that a server has forked share its memory."""
    options = ("--precision", 64, *CPU, *SCENARIOS["cnn"], "--epochs", 2, "--strategy", strategy, "--run-dir")
    launcher = (Path(sys.prefix, "bin", "torchrun"), "--standalone", "--nproc-per-node", 2, "--no-python")
    run(*launcher, *program_of(implementation), *options, tmp_path / "under")
    run(*program_of(implementation), "--devices", 2, *options, tmp_path / "alone")
    under, alone = (read_result(tmp_path / name) for name in ("under", "alone"))
    assert under.devices == 2
    assert read_step_losses(tmp_path / "under") == pytest.approx(read_step_losses(tmp_path / "alone"), rel=1e-13)
    if (implementation, strategy) == ("pt", "ddp"):
        # The peak includes all replicas and the launcher. If one process were missing, it would be two thirds at most.
        assert 0.75 < under.peak_memory_bytes / alone.peak_memory_bytes < 1.33
