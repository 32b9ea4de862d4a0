"""Checks that two runs are the same training; their options may differ."""

import numpy as np
import pytest

from common.platform.files import read_safetensors
from common.record.predictions import Predictions
from common.record.results import EpochLine, read_metrics, read_step_losses


def assert_the_same(reference, other, tolerance, steps):
    """Compares the losses of all `steps` steps, the weights, the evaluations and the predictions of two runs."""
    losses, others = (np.array(read_step_losses(folder)) for folder in (reference, other))
    assert len(losses) == len(others) == steps
    assert np.max(np.abs(losses - others) / losses) <= tolerance
    weights, other_weights = (read_safetensors(folder / "model.safetensors") for folder in (reference, other))
    assert weights.keys() == other_weights.keys()
    for name, array in weights.items():
        assert np.max(np.abs(array - other_weights[name])) <= tolerance * max(1.0, np.max(np.abs(array))), name
    for one, two in zip(*(read_metrics(folder, EpochLine) for folder in (reference, other)), strict=True):
        assert one.test_loss == pytest.approx(two.test_loss, rel=tolerance)
        assert one.train_loss == pytest.approx(two.train_loss, rel=tolerance)
        assert (one.test_correct, one.train_accuracy) == (two.test_correct, two.train_accuracy)
    assert (Predictions.read(reference).guesses == Predictions.read(other).guesses).all()
