import numpy as np
import pytest

from common.platform.errors import UserError
from common.platform.files import write_safetensors
from common.record.predictions import MAX_WRONG_IMAGES, Predictions, confusion


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


def test_they_are_read_as_they_were_written_and_refused_when_they_do_not_fit(tmp_path):
    count = MAX_WRONG_IMAGES + 50
    made = Predictions.make(np.eye(2)[np.zeros(count, int)], np.ones(count, int), np.zeros((count, 2, 2, 3), np.uint8))
    made.write(tmp_path)
    again = Predictions.read(tmp_path)
    assert len(again.wrong_images) == MAX_WRONG_IMAGES
    for name in ("labels", "guesses", "scores", "wrong_indices", "wrong_images"):
        assert np.array_equal(getattr(made, name), getattr(again, name))
    path = tmp_path / "predictions.safetensors"
    write_safetensors(path, {"labels": made.labels})
    with pytest.raises(UserError, match=rf"^{path}: holds \['labels'\], should hold \['guesses', 'labels', 'scores', "):
        Predictions.read(tmp_path)
