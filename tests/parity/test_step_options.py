"""Accumulated batches are one large batch."""

import numpy as np
import pytest
from agreement import COLOURS, assert_arrays_agree, assert_the_same
from conftest import train

from common.experiment import RESIDENT_VARIABLE
from common.record.results import read_result, read_step_losses
from comparison.lockstep import find_departure

TOLERANCE = 1e-12  # observed: 2e-15
# An epoch has 28 steps; the last step has 7 examples. Of 3 devices, the last one gets no examples of a batch of 4.
OPTIONS = (
    *(*COLOURS, "--epochs", 2, "--learning-rate", 0.02, "--model", "mnist_dropout"),
    *("--gradient-clip-val", 0.7, "--momentum", 0.8),
)
ONE_BATCH, THREE_BATCHES = ("--batch-size", 12), ("--batch-size", 4, "--accumulate-grad-batches", 3)


@pytest.mark.quick("pt-plain-2")
@pytest.mark.xdist_group("accumulated")
@pytest.mark.parametrize(
    ("implementation", "mode", "devices"),
    [
        *(("tf", "plain", 2), ("tf", "tuned", 3), ("pt", "plain", 2)),
        *(("ptl", "plain", 3), ("ptl", "tuned", 2), ("jax", "tuned", 3)),
    ],
)
def test_small_batches_are_one_large_batch(trained, tmp_path, implementation, mode, devices):
    other = train(implementation, tmp_path, *OPTIONS, *THREE_BATCHES, "--mode", mode, "--devices", devices)
    assert read_result(other).config.accumulate_grad_batches == 3
    assert_the_same(trained("pt", *OPTIONS, *ONE_BATCH), other, TOLERANCE, steps=56)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("implementation", "cut", "more"),
    [
        ("tf", ("--max-steps", 40), ("--mode", "tuned")),  # and with batches that are streamed to the device
        ("tf", ("--verify-steps", 20), ("--compile", "true")),
        ("pt", ("--max-steps", 40), ("--compile", "true", "--mode", "tuned", "--train-size", 330)),
        ("ptl", ("--verify-steps", 20), ("--mode", "tuned")),
        ("ptl", ("--max-steps", 40), ("--save-first-batch", "true", "--devices", 2)),
    ],
)
def test_small_batches_of_a_run_that_ends_early(tmp_path, implementation, cut, more):
    options = (*OPTIONS, *THREE_BATCHES, *cut, *(more[-2:] if "--train-size" in more else ()))
    reference = train("pt" if implementation == "tf" else "tf", tmp_path / "a", *options)
    other = train(implementation, tmp_path / "b", *options, *more, **{RESIDENT_VARIABLE: "0"})
    losses, others = (np.array(read_step_losses(folder)) for folder in (reference, other))
    assert len(losses) == len(others) == cut[1] and np.max(np.abs(losses - others) / losses) <= TOLERANCE
    assert_arrays_agree(reference, other, "model.safetensors", TOLERANCE)


@pytest.mark.slow
@pytest.mark.xdist_group("accumulated")
@pytest.mark.parametrize(("implementation", "mode"), [("tf", "tuned"), ("ptl", "plain")])
def test_the_first_steps_agree_where_losses_are_scaled(trained, tmp_path, implementation, mode):
    options = (*OPTIONS, *THREE_BATCHES, "--precision", "16-mixed", "--mode", mode, "--devices", 2)
    losses = np.array(read_step_losses(train(implementation, tmp_path, *options)))[:10]
    assert np.max(np.abs(losses - read_step_losses(trained("pt", *OPTIONS, *ONE_BATCH))[:10])) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize(("implementation", "mode"), [("tf", "plain"), ("ptl", "tuned")])
def test_statistics_are_of_one_batch_at_a_time(tmp_path, implementation, mode):
    options = (*COLOURS, "--model", "resnet8", "--batch-size", 10, "--epochs", 1, "--learning-rate", 0.01)
    options = (*options, "--accumulate-grad-batches", 2, "--devices", 2)
    reference = train("pt", tmp_path / "a", *options)
    other = train(implementation, tmp_path / "b", *options, "--mode", mode)
    message = find_departure(reference, other, TOLERANCE)
    assert message is None, message
    assert_arrays_agree(reference, other, "model.safetensors", TOLERANCE)
