import numpy as np
import pytest

from common.platform.errors import UserError
from common.platform.files import read_safetensors, write_safetensors
from common.record.predictions import MAX_WRONG_IMAGES, Predictions


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
    assert found.confusion(3).tolist() == [[1, 1, 1], [0, 1, 0], [0, 0, 2]]


def test_they_are_read_as_they_were_written_and_refused_when_not_whole(tmp_path):
    count = MAX_WRONG_IMAGES + 50
    images = np.zeros((count, 2, 2, 3), np.uint8)
    made = Predictions.make(np.eye(2)[np.zeros(count, int)], np.ones(count, int), images)
    assert len(made.wrong_images) == MAX_WRONG_IMAGES
    made.write(tmp_path)
    again = Predictions.read(tmp_path)
    for name in ("labels", "guesses", "scores", "wrong_indices", "wrong_images"):
        assert np.array_equal(getattr(made, name), getattr(again, name))
        assert getattr(made, name).dtype == getattr(again, name).dtype
    write_safetensors(tmp_path / "predictions.safetensors", {"labels": made.labels})
    with pytest.raises(UserError, match="holds"):
        Predictions.read(tmp_path)
    with pytest.raises(UserError, match="not a readable"):
        Predictions.read(tmp_path / "none")


def refused(change):
    return pytest.param(change, id=" ".join(change))


@pytest.mark.parametrize(
    "change",
    [
        refused({"guesses": np.array([0, 3, 0], np.uint16)}),
        refused({"labels": np.array([0, 1, 200], np.uint16)}),
        refused({"guesses": np.array([0, -1, 0], np.int8)}),
        refused({"labels": np.array([0.0, 1.0, 1.0])}),
        refused({"labels": np.uint16(1).reshape(())}),
        refused({"scores": np.ones(2, np.float32)}),
        refused({"scores": np.array([1, np.nan, 1], np.float32)}),
        refused({"scores": np.array([1, 2, 1], np.float32)}),
        refused({"wrong_indices": np.array([3], np.int64)}),
        refused({"wrong_indices": np.array([-1], np.int64)}),
        refused({"wrong_indices": np.array([0], np.int64)}),
        refused({"wrong_indices": np.array([2.0])}),
        refused({"wrong_indices": np.zeros(0, np.int64)}),
        refused({"wrong_images": np.zeros((0, 2, 2, 1), np.uint8)}),
        refused({"wrong_images": np.zeros((1, 2, 0, 1), np.uint8)}),
        refused({"wrong_images": np.zeros((1, 2, 2), np.uint8)}),
        refused({name: np.zeros(0, dtype) for name, dtype in [("labels", "u2"), ("guesses", "u2"), ("scores", "f4")]}),
    ],
)
def test_arrays_of_another_kind_or_with_other_values_are_refused(tmp_path, change):
    Predictions.make(np.eye(3)[[0, 1, 0]], np.array([0, 1, 1]), np.zeros((3, 2, 2, 1), np.uint8)).write(tmp_path)
    assert Predictions.read(tmp_path, 3).wrong_indices.tolist() == [2]
    path = tmp_path / "predictions.safetensors"
    write_safetensors(path, read_safetensors(path) | change)
    with pytest.raises(UserError, match=rf"^{path}: (has|its|{next(iter(change))} is) "):
        Predictions.read(tmp_path, 3)


def test_a_shape_that_cannot_be_is_refused(tmp_path):
    header = b'{"labels":{"dtype":"F32","shape":[0,9223372036854775807],"data_offsets":[0,0]}}'
    (tmp_path / "predictions.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(UserError, match="not a readable safetensors file: "):
        Predictions.read(tmp_path)
