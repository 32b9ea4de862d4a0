import numpy as np
import pytest

from common.record.predictions import Predictions, confusion


def test_scores_are_the_softmax_of_the_guess():
    logits = np.array([[1.0, 3.0, 2.0], [5.0, 0.0, 0.0], [1000.0, 999.0, 0.0]])
    found = Predictions.make(logits, np.array([1, 1, 0]), np.arange(12, dtype=np.uint8).reshape(3, 2, 2, 1))
    assert found.guesses.tolist() == [1, 0, 0]
    exact = np.exp(logits[:2]) / np.exp(logits[:2]).sum(axis=1, keepdims=True)
    assert found.scores.tolist() == pytest.approx([exact[0, 1], exact[1, 0], 1 / (1 + np.exp(-1))])
    assert found.wrong_indices.tolist() == [1]
    assert found.wrong_images.tolist() == [[[[4], [5]], [[6], [7]]]]


def test_a_confusion_matrix_has_classes_in_rows_and_guesses_in_columns():
    logits = np.eye(3)[[0, 1, 1, 2, 2, 2]]
    found = Predictions.make(logits, np.array([0, 0, 1, 2, 2, 0]), np.zeros((6, 1, 1, 1), np.uint8))
    assert confusion(found.labels, found.guesses, 3).tolist() == [[1, 1, 1], [0, 1, 0], [0, 0, 2]]
