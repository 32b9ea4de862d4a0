"""The data of all activities: images as floats, ready to be the input of a network."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.data.datasets import load_dataset
from common.platform.errors import UserError
from common.spec.options import DatasetName, TrainConfig

NAMES: tuple[DatasetName, ...] = ("digits", "mnist", "fashion_mnist", "cifar10")


class Examples(NamedTuple):
    """images: float32 (N, H, W, C), each channel with a mean of 0 and a standard deviation of 1 over the training set;
    labels: int64 (N,), from 0 up to num_classes - 1."""

    train_images: NDArray[np.float32]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.float32]
    test_labels: NDArray[np.int64]
    num_classes: int


def load_examples(name: DatasetName = "digits", data_dir: str = "data") -> Examples:
    """The examples of a data set, one of `NAMES`.

    digits is a part of the installation. The others are read from `data_dir`, or downloaded there. If the data set can
    not be loaded, prints an error in one line and ends the program.
    """
    try:
        data = load_dataset(TrainConfig(dataset=name, data_dir=data_dir))
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
    train_images, test_images = ((images - data.shift) * data.scale for images in (data.train_images, data.test_images))
    return Examples(train_images, data.train_labels, test_images, data.test_labels, data.num_classes)
