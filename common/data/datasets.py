"""Data sets as arrays with the same bytes for every implementation, and their normalisation."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, FiniteFloat

from common.data.arrays import WHITE
from common.data.catalogue import DatasetEntry, dataset_entry
from common.data.formats import Images, Labels, Split
from common.platform.errors import UserError
from common.platform.files import arrays_sha256
from common.spec.optimizers import float32
from common.spec.options import ClassNames, DatasetName, ImageShape, TrainConfig


class DataSpec(BaseModel, frozen=True, extra="forbid"):
    """What a network is trained to take and to answer. It is kept in the file of the trained weights."""

    image_shape: ImageShape  # height, width and channels
    class_names: ClassNames  # in the order of the labels
    largest: int = Field(gt=0, le=255)  # the largest pixel value, which is white; 1 for images of float32
    # For each channel. The input of a network is (image - shift) * scale, in the network's own precision.
    shift: list[FiniteFloat]
    scale: list[Annotated[FiniteFloat, Field(gt=0)]]

    @property
    def is_float(self) -> bool:
        """Whether the images are float32, and so no pictures."""
        return self.largest == WHITE["float32"]


@dataclass(frozen=True)
class Dataset:
    """Training and test examples in memory.

    Attributes:
      train_images, test_images: uint8 or float32 (N, H, W, C).
      train_labels, test_labels: int64 (N,), 0 up to num_classes - 1.
      sha256: hex digest over the four arrays.
    """

    name: DatasetName
    spec: DataSpec
    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels
    sha256: str

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.spec.image_shape

    @property
    def class_names(self) -> list[str]:
        return self.spec.class_names

    @property
    def num_classes(self) -> int:
        return len(self.spec.class_names)

    @cached_property
    def shift(self) -> NDArray[np.float32]:
        """float32 (C,), see `DataSpec`."""
        return np.array(self.spec.shift, dtype=np.float32)

    @cached_property
    def scale(self) -> NDArray[np.float32]:
        """float32 (C,), see `DataSpec`."""
        return np.array(self.spec.scale, dtype=np.float32)


def num_examples(config: TrainConfig) -> tuple[int, int]:
    """Numbers of training and of test examples of the data set of `config`, known without reading its images."""
    entry = dataset_entry(config)
    train, test = entry.num_train, entry.num_test
    return min(config.train_size or train, train), min(config.test_size or test, test)


def data_spec(config: TrainConfig) -> DataSpec:
    """What a network is trained to take and to answer on the data set of `config`, without reading its images."""
    return _spec(dataset_entry(config))


def _spec(entry: DatasetEntry) -> DataSpec:
    return DataSpec(
        image_shape=entry.image_shape,
        class_names=entry.class_names,
        largest=entry.largest,
        shift=[float32(value * entry.largest) for value in entry.mean],
        scale=[float32(1 / (value * entry.largest)) for value in entry.std],
    )


def load_dataset(config: TrainConfig) -> Dataset:
    """Reads, downloads or makes the data set of `config`; every call returns the same bytes.

    Raises UserError if files are damaged or unavailable, or there are fewer examples than asked for.
    """
    entry = dataset_entry(config)
    train, test = entry.read(config.data_dir)
    assert train[0].shape[1:] == test[0].shape[1:] == entry.image_shape, "are the files of its Source in another order?"
    train = _first(train, config.train_size, "--train-size")
    evaluated = train if config.evaluate_on == "train" else test
    test = _first(evaluated, config.test_size, "--test-size")
    if entry.sha256 is not None:  # it covers all arrays; reading them all again would take minutes
        digest = hashlib.sha256(f"{entry.sha256} {len(train[0])} {len(test[0])}".encode()).hexdigest()
    else:
        names = ("train_images", "train_labels", "test_images", "test_labels")
        digest = arrays_sha256(dict(zip(names, (*train, *test), strict=True)))
    return Dataset(config.dataset, _spec(entry), *train, *test, digest)


def _first(split: Split, size: int | None, option: str) -> Split:
    images, labels = split
    if size is not None and size > len(images):
        raise UserError(f"{option} {size}: there are only {len(images)} examples")
    return images[:size], labels[:size]
