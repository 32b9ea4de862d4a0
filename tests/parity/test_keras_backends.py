"""Keras on PyTorch and on JAX: fit is the same training as in PyTorch, on one device."""

import json

import pytest
from agreement import assert_the_same
from conftest import CPU, ON_ONE_DEVICE, changed_code, run_program, train

from common.record.results import read_result
from comparison.lockstep import find_departure

TOLERANCE = 1e-12
TUTORIAL = ("--mode", "tutorial")
# The last of 27 batches has five examples: a fifth is no 32-bit number.
SMALL = ("--train-size", 421, "--batch-size", 16, "--epochs", 2, "--precision", 64)
SCENARIOS = {
    "sgd": ("--momentum", 0.9, "--nesterov", "true", "--schedule", "cosine", "--gradient-clip-val", 0.5),
    "adam": ("--optimizer", "adam", "--weight-decay", 1e-3, "--label-smoothing", 0.1),
    "adamw": (
        *("--optimizer", "adamw", "--schedule", "one-cycle", "--model", "lenet"),
        *("--dataset", "synthetic", "--image-shape", 16, 19, 3, "--test-size", 101),
    ),
    "adadelta": ("--optimizer", "adadelta", "--weight-decay", 1e-3, "--schedule", "step", "--step-size", 1),
    "cut short": ("--max-steps", 50),
    "residual": ("--model", "resnet8", "--momentum", 0.9),
    "drawn": ("--model", "mnist_dropout", "--random-crop", 2, "--horizontal-flip", "true"),
}


@pytest.fixture
def reference(trained):
    """Scenario -> the run folder of PyTorch in plain mode, with checkpoints."""
    return lambda scenario: trained("pt", *SMALL, *SCENARIOS[scenario], "--checkpoint-every", 40)


@pytest.mark.quick("sgd")
@pytest.mark.xdist_group("keras-backends")
@pytest.mark.parametrize(
    ("scenario", "implementation"),
    [("sgd", "keras_jax"), *((name, ON_ONE_DEVICE[row % 2]) for row, name in enumerate(SCENARIOS))],
)
def test_fit_is_the_same_training(reference, tmp_path, scenario, implementation):
    other = train(implementation, tmp_path / "run", *SMALL, *SCENARIOS[scenario], *TUTORIAL)
    assert find_departure(reference(scenario), other, TOLERANCE) is None
    assert_the_same(reference(scenario), other, TOLERANCE, steps=50 if scenario == "cut short" else 54)


@pytest.mark.slow
@pytest.mark.xdist_group("keras-backends")
@pytest.mark.parametrize(("implementation", "scenario"), [("keras_torch", "drawn"), ("keras_jax", "adam")])
def test_it_resumes_and_is_resumed(reference, tmp_path, implementation, scenario):
    """From PyTorch's checkpoint within the second epoch, and then PyTorch from its own."""
    whole = reference(scenario)
    more = ("--checkpoint-every", 15)
    checkpoint = whole / "checkpoints" / "step-000000040"
    other = train(
        implementation, tmp_path / "a", *SMALL, *SCENARIOS[scenario], *more, *TUTORIAL, "--resume", checkpoint
    )
    assert find_departure(whole, other, TOLERANCE) is None
    checkpoint = other / "checkpoints" / "step-000000045"
    last = train("pt", tmp_path / "b", *SMALL, *SCENARIOS[scenario], *more, "--resume", checkpoint)
    assert find_departure(whole, last, TOLERANCE) is None


@pytest.mark.slow
@pytest.mark.xdist_group("keras-backends")
def test_evaluation_says_what_the_training_said(tmp_path):
    trained = train("keras_jax", tmp_path / "r", *SMALL, "--model", "mnist_dropout", *TUTORIAL)
    options = ("--weights", trained / "model.safetensors", "--precision", 64, *CPU, "--format", "json")
    found = json.loads(run_program("keras_jax", "evaluate", *options).stdout)
    result = read_result(trained)
    assert found["test_correct"] == result.test_correct
    assert found["test_loss"] == pytest.approx(result.test_loss, rel=1e-12)


@pytest.mark.slow
@pytest.mark.xdist_group("keras-backends")
def test_a_mistake_is_caught(reference, tmp_path):
    before, after = "epoch_order(config.seed, epoch + 1,", "epoch_order(config.seed, 1,"
    changed_code(tmp_path / "copy", "keras_impl/on_one_device.py", before, after)
    other = train("keras_torch", tmp_path / "run", *SMALL, *SCENARIOS["sgd"], *TUTORIAL, cwd=tmp_path / "copy")
    message = find_departure(reference("sgd"), other, TOLERANCE)
    assert "step 28 of 54 (epoch 2)" in message and "the first of its epoch" in message
