"""What the tests of this folder share: whether two runs are the same training, and which variants are run."""

import os

import numpy as np
import pytest

from common.platform.files import read_safetensors
from common.record.predictions import Predictions
from common.record.results import EpochLine, read_metrics, read_step_losses

# Images that are neither square nor grey. The batch sizes of the tests do not divide the training set.
COLOURS = (
    *("--dataset", "synthetic", "--image-shape", 12, 9, 3, "--train-size", 331, "--test-size", 51),
    *("--precision", 64),
)
# How many random settings each test of them draws, in multiples of ten.
RANDOM_SETTINGS = int(os.environ.get("TEST_SETTINGS", "30"))


def rotated(scenarios, implementations, ways):
    """Every scenario with every implementation; each pair has one of the ways, which are taken in turns.

    So each implementation meets each way, and each scenario meets as many as there are implementations.
    """
    return [
        (scenario, implementation, *ways[(row + column) % len(ways)])
        for row, scenario in enumerate(scenarios)
        for column, implementation in enumerate(implementations)
    ]


def assert_the_same(reference, other, tolerance, steps):
    """Compares the losses of all `steps` steps, the weights, the evaluations and the predictions of two runs.

    Their options may differ.
    """
    losses, others = (np.array(read_step_losses(folder)) for folder in (reference, other))
    assert len(losses) == len(others) == steps
    assert np.max(np.abs(losses - others) / losses) <= tolerance
    assert_arrays_agree(reference, other, "model.safetensors", tolerance)
    for one, two in zip(*(read_metrics(folder, EpochLine) for folder in (reference, other)), strict=True):
        assert one.test_loss == pytest.approx(two.test_loss, rel=tolerance)
        assert one.train_loss == pytest.approx(two.train_loss, rel=tolerance)
        assert (one.test_correct, one.train_accuracy) == (two.test_correct, two.train_accuracy)
    assert (Predictions.read(reference).guesses == Predictions.read(other).guesses).all()


def assert_arrays_agree(reference, other, file, tolerance):
    arrays, others = (read_safetensors(folder / file) for folder in (reference, other))
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        assert array.dtype == others[name].dtype
        assert np.max(np.abs(array - others[name])) <= tolerance * max(1.0, np.max(np.abs(array))), name
