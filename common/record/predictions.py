"""The predictions of a trained network for all test images, and the images that it got wrong."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from common.data.formats import Images, Labels
from common.platform.errors import UserError
from common.platform.files import read_safetensors, write_safetensors

PREDICTIONS_FILE = "predictions.safetensors"
MAX_WRONG_IMAGES = 200  # stored: the first ones of the test set, so that a report can show them without the data


@dataclass(frozen=True)
class Predictions:
    """The content of `predictions.safetensors`, for the n test images in the order of the test set.

    Attributes:
      labels, guesses: uint16 (n,): the true class, and the class with the largest score.
      scores: float32 (n,): the softmax score of the guess, 0 to 1.
      wrong_indices: int64 (w,): the first test images that were guessed wrong, MAX_WRONG_IMAGES at most.
      wrong_images: uint8 or float32 (w, H, W, C): those images.
    """

    labels: NDArray[np.uint16]
    guesses: NDArray[np.uint16]
    scores: NDArray[np.float32]
    wrong_indices: NDArray[np.int64]
    wrong_images: Images

    @classmethod
    def make(cls, logits: NDArray[Any], labels: Labels, images: Images) -> Self:
        """Predictions from float logits (n, classes), int64 labels (n,) and images (n, H, W, C)."""
        assert logits.shape[0] == len(labels) == len(images), (logits.shape, len(labels), len(images))
        shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
        scores = 1 / np.exp(shifted).sum(axis=1)  # softmax of the largest logit, whose shifted value is 0
        guesses = logits.argmax(axis=1)
        wrong = np.flatnonzero(labels != guesses)[:MAX_WRONG_IMAGES]
        return cls(labels.astype(np.uint16), guesses.astype(np.uint16), scores.astype(np.float32), wrong, images[wrong])

    def write(self, run_dir: Path) -> None:
        write_safetensors(run_dir / PREDICTIONS_FILE, vars(self))

    @classmethod
    def read(cls, run_dir: Path) -> Self:
        """Raises UserError if the file is missing or damaged."""
        path = run_dir / PREDICTIONS_FILE
        try:
            return cls(**read_safetensors(path))
        except TypeError as error:
            raise UserError(f"{path}: has other arrays than predictions: {error}") from None


def confusion(labels: NDArray[Any], guesses: NDArray[Any], num_classes: int) -> NDArray[np.int64]:
    """int64 (classes, classes): how many images of each class (row) were guessed as each class (column)."""
    pairs = labels.astype(np.int64) * num_classes + guesses
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def as_rgb(image: Images) -> Images:
    """uint8 (H, W, 3), for display: one channel becomes grey, three are colours, of others only the first is shown.

    Of float32 the least value becomes black, the largest one white.
    """
    if image.dtype == np.float32:
        image = np.interp(image, [image.min(), image.max()], [0, 255]).astype(np.uint8)
    shown = image if image.shape[2] == 3 else np.repeat(image[:, :, :1], 3, axis=2)
    if image.shape[2] == 1 and image.max() <= 16:
        shown = (shown.astype(np.uint16) * 255 // 16).astype(np.uint8)  # the values of digits are 0 to 16
    return np.ascontiguousarray(shown)
