"""Keras on PyTorch and on JAX: fit is the same training as in PyTorch, on one device."""

import functools
import json

import pytest
from agreement import assert_the_same
from conftest import CPU, ON_ONE_DEVICE, changed_code, run_program, train

from common.record.audited_states import STEPS_VARIABLE
from common.record.results import read_result
from comparison.lockstep import find_departure
from comparison.prove.audits import make_audits

TOLERANCE = 1e-12
TUTORIAL = ("--mode", "tutorial")
# The last of 27 batches has five examples: a fifth is no 32-bit number.
SMALL = ("--train-size", 421, "--batch-size", 16, "--epochs", 4, "--precision", 64)
SCENARIOS = {
    "sgd": ("--momentum", 0.9, "--nesterov", "true", "--schedule", "cosine", "--gradient-clip-val", 0.5),
    "adam": ("--optimizer", "adam", "--weight-decay", 1e-3, "--label-smoothing", 0.1),
    "adamw": ("--optimizer", "adamw", "--schedule", "one-cycle", "--model", "lenet", *("--dataset", "synthetic")),
    "adadelta": ("--optimizer", "adadelta", "--weight-decay", 1e-3, "--schedule", "step", "--step-size", 1),
    "cut short": ("--max-steps", 50, "--epochs", 2),
    "residual": ("--model", "resnet8", "--momentum", 0.9),
    "drawn": ("--model", "mnist_dropout", "--random-crop", 2, "--horizontal-flip", "true"),
}
SHAPE = ("--image-shape", 16, 19, 3, "--test-size", 101)


def options_of(scenario):
    return (*SMALL, *SCENARIOS[scenario], *(SHAPE if "synthetic" in SCENARIOS[scenario] else ()))


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    """Scenario -> the run folder of PyTorch in plain mode, with checkpoints; trained once for all tests."""
    more = ("--checkpoint-every", 40)
    return functools.cache(
        lambda scenario: train("pt", tmp_path_factory.mktemp(scenario), *options_of(scenario), *more)
    )


@pytest.mark.quick("sgd")
@pytest.mark.xdist_group("keras-backends")
@pytest.mark.parametrize("implementation", ON_ONE_DEVICE)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_fit_is_the_same_training(reference, tmp_path, scenario, implementation):
    other = train(implementation, tmp_path / "run", *options_of(scenario), *TUTORIAL)
    assert find_departure(reference(scenario), other, TOLERANCE) is None
    assert_the_same(reference(scenario), other, TOLERANCE, steps=50 if scenario == "cut short" else 108)


@pytest.mark.slow
@pytest.mark.xdist_group("keras-backends")
@pytest.mark.parametrize("scenario", ["adam", "drawn"])
@pytest.mark.parametrize("implementation", ON_ONE_DEVICE)
def test_it_resumes_and_is_resumed(reference, tmp_path, implementation, scenario):
    """From PyTorch's checkpoint within the second epoch, and then PyTorch from its own."""
    whole = reference(scenario)
    more = ("--checkpoint-every", 30)
    checkpoint = whole / "checkpoints" / "step-000000040"
    other = train(implementation, tmp_path / "a", *options_of(scenario), *more, *TUTORIAL, "--resume", checkpoint)
    assert find_departure(whole, other, TOLERANCE) is None
    checkpoint = other / "checkpoints" / "step-000000090"
    last = train("pt", tmp_path / "b", *options_of(scenario), *more, "--resume", checkpoint)
    assert find_departure(whole, last, TOLERANCE) is None


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ON_ONE_DEVICE)
def test_steps_of_a_timed_run_pass_their_audits(tmp_path, implementation):
    options = ("--optimizer", "adam", "--train-size", 340, "--epochs", 3, *TUTORIAL)
    train(implementation, tmp_path / "run", *options, **{STEPS_VARIABLE: "1 6 7 18"})
    audits = make_audits(tmp_path / "run", (1, 6, 7, 18))
    assert [audit.same for audit in audits.steps] == [True] * 4, audits


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ON_ONE_DEVICE)
def test_evaluation_says_what_the_training_said(tmp_path, implementation):
    trained = train(implementation, tmp_path / "r", *SMALL, "--model", "mnist_dropout", *TUTORIAL)
    options = ("--weights", trained / "model.safetensors", "--precision", 64, *CPU, "--format", "json")
    found = json.loads(run_program(implementation, "evaluate", *options).stdout)
    result = read_result(trained)
    assert found["test_correct"] == result.test_correct
    assert found["test_loss"] == pytest.approx(result.test_loss, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ON_ONE_DEVICE)
def test_a_mistake_is_caught(reference, tmp_path, implementation):
    changed_code(
        tmp_path / "copy",
        "keras_impl/on_one_device.py",
        "epoch_order(config.seed, epoch + 1,",
        "epoch_order(config.seed, 1,",
    )
    other = train(implementation, tmp_path / "run", *options_of("sgd"), *TUTORIAL, cwd=tmp_path / "copy")
    message = find_departure(reference("sgd"), other, TOLERANCE)
    assert "step 28 of 108 (epoch 2)" in message and "the first of its epoch" in message


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--mode", "plain"), "--mode plain: Keras-torch has --mode tutorial alone"),
        pytest.param(
            (*TUTORIAL, "--devices", 2), "--devices 2: Keras-torch trains on one device", marks=pytest.mark.slow
        ),
        pytest.param(
            (*TUTORIAL, "--precision", "16-mixed"),
            "--precision 16-mixed: Keras-torch does not have it",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_it_does_not_have_is_refused(tmp_path, options, said):
    process = run_program("keras_torch", *CPU, *options, "--run-dir", tmp_path / "r", expect=2)
    assert said in process.stderr and not (tmp_path / "r").exists()
