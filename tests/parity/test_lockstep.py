"""Lockstep: the same training in every framework and on any number of devices, step by step."""

import functools
import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import CPU, IMPLEMENTATIONS, MODES, program_of, run, run_program, train

from common.experiment import RESIDENT_VARIABLE
from common.platform.files import read_safetensors
from common.record.results import EpochLine, read_metrics, read_result, read_step_losses
from comparison.lockstep import find_departure

DEVICES = (1, 2, 3)
RUNS = list(itertools.product(IMPLEMENTATIONS, MODES, DEVICES))
REFERENCE = ("pt", "plain", 1)
JSON = ("--threads-per-device", 1, "--format", "json")
TOLERANCE = 1e-12

# At least 100 steps over several epochs, and a training set that the batch size doesn't divide: the last batch has two
# examples, so one of three devices gets none. float32 can't represent the values 0.05 and 0.9 exactly.
PLAIN = ("--learning-rate", 0.05, "--schedule", "constant", "--momentum", 0.9)
FULL = (
    *("--learning-rate", 0.05, "--schedule", "cosine", "--warmup-steps", 20),
    *("--momentum", 0.9, "--nesterov", "true", "--weight-decay", 5e-4),
)
CNN = ("--model", "cnn", "--train-size", 418, "--batch-size", 16, "--epochs", 4, "--save-first-batch", "true")
# Images that are neither square nor grey.
LENET = (
    *("--model", "lenet", "--dataset", "synthetic", "--image-shape", 16, 19, 3, "--train-size", 434),
    *("--test-size", 101, "--batch-size", 16, "--epochs", 4, "--save-first-batch", "true"),
)
SCENARIOS = {
    "cnn-plain": (*CNN, *PLAIN),
    "lenet-full": (*LENET, *FULL),
    # The other two combinations of network and update rule are marked slow.
    "cnn-full": (*CNN, *FULL),
    "lenet-plain": (*LENET, *PLAIN),
}
# The full product of scenarios, implementations, modes and numbers of devices is tested; most of it is marked slow.
# Quick: each implementation in each mode, and each number of devices.
QUICK = pytest.mark.quick(
    "cnn-plain-tf-plain-1",
    "cnn-plain-keras-plain-2",
    "cnn-plain-pt-plain-2",
    "cnn-plain-ptl-plain-1",
    "lenet-full-tf-tuned-2",
    "lenet-full-keras-tuned-1",
    "lenet-full-pt-tuned-3",
    "cnn-plain-jax-plain-2",
    "lenet-full-jax-tuned-1",
)


# Every update rule with all its hyperparameters in use, every schedule, and labels with and without smoothing.
RULES = {
    "adam": ("--weight-decay", 1e-3, "--schedule", "step", "--step-size", 1, "--gamma", 0.5),
    "adamw": (
        *("--weight-decay", 0.05, "--learning-rate", 0.003, "--schedule", "one-cycle", "--warmup-steps", 10),
        *("--label-smoothing", 0.1),
    ),
    "adadelta": (
        *("--weight-decay", 1e-3, "--learning-rate", 0.5, "--warmup-steps", 10, "--schedule", "step"),
        *("--label-smoothing", 0.2),
    ),
}


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """(scenario, precision, implementation, mode, devices) -> run folder; each run is trained once for all tests."""

    @functools.cache
    def trained(scenario, precision, implementation, mode, devices):
        folder = tmp_path_factory.mktemp(f"{scenario}-{precision}-{implementation}-{mode}-{devices}")
        options = ("--precision", precision, "--mode", mode, "--devices", devices, *SCENARIOS[scenario])
        return train(implementation, folder, *options)

    return trained


def cases(*runs):
    """The tests of one scenario run in one process, so that they share its runs."""

    return pytest.mark.parametrize(
        ("scenario", "implementation", "mode", "devices"),
        [
            pytest.param(scenario, *case, marks=pytest.mark.xdist_group(scenario))
            for scenario in SCENARIOS
            for case in runs
            if case != REFERENCE
        ],
    )


def relative(reference, other):
    return np.max(np.abs(reference - other)) / np.max(np.abs(reference))


@QUICK
@cases(*RUNS)
def test_every_step_and_the_final_weights_agree_in_float64(runs, scenario, implementation, mode, devices):
    reference, other = (runs(scenario, "64", *case) for case in (REFERENCE, (implementation, mode, devices)))
    result, other_result = read_result(reference), read_result(other)
    assert other_result.devices == devices and other_result.implementation == implementation
    assert other_result.config.mode == mode and other_result.config.precision == "64"
    assert result.num_steps >= 100 and len(result.epoch_train_seconds) > 1
    assert result.train_count % result.config.batch_size

    message = find_departure(reference, other, TOLERANCE)
    assert message is None, message
    losses, other_losses = (np.array(read_step_losses(folder)) for folder in (reference, other))
    assert len(losses) == len(other_losses) == result.num_steps
    differences = np.abs(losses - other_losses) / losses
    assert differences.max() <= TOLERANCE, f"step {differences.argmax() + 1}: {differences.max():.1e}"

    weights, other_weights = (read_safetensors(folder / "model.safetensors") for folder in (reference, other))
    assert weights.keys() == other_weights.keys()
    for name, array in weights.items():
        assert array.dtype == np.float64
        assert relative(array, other_weights[name]) <= TOLERANCE, name
    assert result.test_correct == other_result.test_correct
    assert result.test_count == other_result.test_count == read_metrics(other, EpochLine)[0].test_count


@pytest.fixture(scope="session")
def rule_reference(tmp_path_factory):
    """Update rule -> the run folder of PyTorch on one device, with which all others are compared."""

    @functools.cache
    def trained(rule):
        return train("pt", tmp_path_factory.mktemp(rule), *rule_options(rule), "--devices", 1)

    return trained


def rule_options(rule):
    return (*CNN, "--precision", 64, "--optimizer", rule, *RULES[rule])


@pytest.mark.quick("adamw-pt-tuned-2", "adam-tf-tuned-1")
@pytest.mark.parametrize(
    ("rule", "implementation", "mode", "devices"),
    [
        pytest.param(*(rule, *case), marks=pytest.mark.xdist_group(rule))
        for rule in RULES
        for case in RUNS
        if case != REFERENCE
    ],
)
def test_every_update_rule_and_schedule_is_the_same(rule_reference, tmp_path, rule, implementation, mode, devices):
    options = (*rule_options(rule), "--mode", mode, "--devices", devices)
    other = train(implementation, tmp_path, *options)
    assert read_result(other).num_steps >= 100 and read_result(other).config.optimizer == rule
    message = find_departure(rule_reference(rule), other, TOLERANCE)
    assert message is None, message
    weights, other_weights = (
        read_safetensors(folder / "model.safetensors") for folder in (rule_reference(rule), other)
    )
    assert max(relative(array, other_weights[name]) for name, array in weights.items()) <= TOLERANCE


@pytest.mark.quick("pt")
@pytest.mark.xdist_group("lenet-full")
@pytest.mark.parametrize("implementation", ["tf", "pt", "ptl"])  # Keras has no other way
def test_tuned_batches_gathered_ahead_of_the_steps_are_the_same(runs, tmp_path, implementation):
    options = (*SCENARIOS["lenet-full"], "--precision", 64, "--devices", 2, "--mode", "tuned")
    streamed = train(implementation, tmp_path, *options, **{RESIDENT_VARIABLE: "0"})
    message = find_departure(runs("lenet-full", "64", *REFERENCE), streamed, TOLERANCE)
    assert message is None, message


@pytest.mark.quick("tf-tuned---max-steps", "ptl-plain---verify-steps")
@pytest.mark.xdist_group("cut")
@pytest.mark.parametrize("options", [("--max-steps", 33), ("--verify-steps", 20)], ids=lambda value: value[0])
@pytest.mark.parametrize(
    ("implementation", "mode"),
    [("tf", "tuned"), ("ptl", "plain"), ("keras", "tuned")],
)
def test_a_last_epoch_that_ends_early_is_the_same(tmp_path, implementation, mode, options):
    """An epoch has 27 batches, so 33 steps end in the second epoch, as a proof does; no step follows the last one."""
    options = (*SCENARIOS["cnn-plain"], "--precision", 64, *options)
    reference = train("pt", tmp_path / "pt", *options)
    message = find_departure(reference, train(implementation, tmp_path / "r", *options, "--mode", mode), TOLERANCE)
    assert message is None, message


@QUICK
@cases(*RUNS)
def test_logits_and_gradients_agree_on_the_first_batch(runs, scenario, implementation, mode, devices):
    folders = (runs(scenario, "64", *case) for case in (REFERENCE, (implementation, mode, devices)))
    arrays, other = (read_safetensors(folder / "first_batch.safetensors") for folder in folders)
    assert arrays.keys() == other.keys()
    gradients = [name for name in arrays if name.startswith("gradient.")]
    assert len(gradients) == 8 and "activation.dense2" in arrays
    faults = {name: relative(arrays[name], other[name]) for name in arrays}
    assert not {name: fault for name, fault in faults.items() if not fault <= 1e-12}


@pytest.mark.quick("cnn-plain-tf-plain-1", "cnn-plain-ptl-plain-1")
@cases(("tf", "plain", 1), ("keras", "plain", 1), ("ptl", "plain", 1), ("tf", "tuned", 1), ("pt", "tuned", 1))
def test_the_first_ten_steps_agree_in_float32(runs, scenario, implementation, mode, devices):
    folders = [runs(scenario, "32", *case) for case in (REFERENCE, (implementation, mode, devices))]
    losses, other = (np.array(read_step_losses(folder)[:10]) for folder in folders)
    differences = np.abs(losses - other) / losses
    assert len(differences) == 10 and differences.max() <= 1e-5, differences
    arrays, other = (read_safetensors(folder / "first_batch.safetensors") for folder in folders)
    for name in arrays:
        assert arrays[name].dtype == np.float32 and relative(arrays[name], other[name]) <= 1e-5, name


@pytest.mark.quick("keras-pt-1")
@pytest.mark.parametrize(
    ("source", "implementation", "devices"),
    [
        ("tf", "pt", 3),
        ("tf", "ptl", 1),
        ("pt", "keras", 2),
        ("pt", "ptl", 2),
        ("ptl", "tf", 3),
        ("keras", "pt", 1),
        ("pt", "jax", 2),
    ],
)
@pytest.mark.xdist_group("cnn-plain")
def test_weights_trained_in_one_give_the_same_answers_in_another(runs, source, implementation, devices):
    """Evaluates on one device, whatever number of devices the weights were trained on."""
    trained = runs("cnn-plain", "64", source, "plain", devices)
    options = ("--weights", trained / "model.safetensors", "--precision", 64, "--accelerator", "cpu")
    found = json.loads(run_program(implementation, "evaluate", *options, *JSON).stdout)
    result = read_result(trained)
    assert found["test_correct"] == result.test_correct and found["test_count"] == result.test_count == 355
    assert found["test_loss"] == pytest.approx(result.test_loss, rel=1e-12)


UNDER_TORCHRUN = ("--precision", 64, *CPU, *SCENARIOS["cnn-plain"])


@pytest.fixture(scope="session")
def under_torchrun(tmp_path_factory):
    """Implementation -> the run folder of two processes that torchrun has started."""

    @functools.cache
    def trained(implementation):
        folder = tmp_path_factory.mktemp("torchrun")
        launcher = (Path(sys.prefix, "bin", "torchrun"), "--standalone", "--nproc-per-node", 2, "--no-python")
        run(*launcher, *program_of(implementation), *UNDER_TORCHRUN, "--run-dir", folder)
        return folder

    return trained


@pytest.mark.quick("pt")
@pytest.mark.xdist_group("cnn-plain")
@pytest.mark.parametrize("implementation", ["pt", "ptl", "jax"])
def test_under_torchrun_it_is_the_same_run(runs, under_torchrun, implementation):
    under, alone = under_torchrun(implementation), runs("cnn-plain", "64", implementation, "plain", 2)
    assert read_result(under).devices == 2
    assert read_step_losses(under) == pytest.approx(read_step_losses(alone), rel=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["pt", "ptl"])  # alone, JAX has one process for both devices
def test_under_torchrun_the_peak_memory_is_that_of_all_processes(under_torchrun, tmp_path, implementation):
    # Not one of `runs`, whose processes share memory with the server that has forked them.
    run(*program_of(implementation), *UNDER_TORCHRUN, "--devices", 2, "--run-dir", tmp_path / "alone")
    # The peak includes all replicas and the launcher. If one process were missing, it would be two thirds at most.
    memory = read_result(under_torchrun(implementation)).peak_memory_bytes
    assert 0.75 < memory / read_result(tmp_path / "alone").peak_memory_bytes < 1.33
