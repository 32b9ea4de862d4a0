"""Data sets as uint8 arrays with the same bytes for every implementation, and their normalisation."""

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, PositiveInt, model_validator

from common.data.arrays import ArraysInfo, arrays_size, check_content, read_arrays_folder
from common.data.embedded import SYNTHETIC_SHAPE, make_synthetic, read_digits, synthetic_size
from common.data.formats import Images, Labels, Split
from common.data.published import FASHION_MNIST, MNIST, read_cifar10, read_cifar100, read_idx
from common.platform.errors import UserError
from common.platform.files import Arrays, arrays_sha256
from common.spec.options import DatasetName, TrainConfig
from common.spec.update_rule import float32


class DataSpec(BaseModel):
    """What a network is trained to take and to answer. It is kept in the file of the trained weights.

    Attributes:
      image_shape: height, width and channels.
      class_names: name of each class, in the order of the labels.
      largest: the largest pixel value, which is white.
      shift, scale: for each channel. The input of a network is (image - shift) * scale, in the network's own precision.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    image_shape: tuple[PositiveInt, PositiveInt, PositiveInt]
    class_names: list[str] = Field(min_length=2, max_length=256)
    largest: int = Field(gt=0, le=255)
    shift: list[FiniteFloat]
    scale: list[FiniteFloat]

    @model_validator(mode="after")
    def _is_of_all_channels(self) -> "DataSpec":
        if not len(self.shift) == len(self.scale) == self.image_shape[2]:
            raise ValueError(f"shift and scale should have {self.image_shape[2]} channels")
        return self


@dataclass(frozen=True)
class Dataset:
    """Training and test examples in memory.

    Attributes:
      train_images, test_images: uint8 (N, H, W, C).
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


# Mean and standard deviation of each channel over the training images, both divided by the largest pixel
# value; then the largest pixel value. The numbers for MNIST are from pytorch/examples; those for Fashion-MNIST
# and CIFAR are in many public training scripts. Those for digits and synthetic were computed from the images
# made here. Tests recompute the numbers of all data sets that are present.
NORMALISATION: dict[DatasetName, tuple[tuple[float, ...], tuple[float, ...], int]] = {
    "digits": ((0.3051,), (0.3762,), 16),
    "mnist": ((0.1307,), (0.3081,), 255),
    "fashion_mnist": ((0.2860,), (0.3530,), 255),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), 255),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), 255),
    "synthetic": ((0.5,), (0.2557,), 255),
}

FINE_LABELS = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
# Class names of the data sets' authors, in the order of the labels. Other data sets name their classes 0, 1, 2, ...
CLASS_NAMES: dict[DatasetName, list[str]] = {
    "cifar100": FINE_LABELS.split(),
    "fashion_mnist": ["T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Boot"],
    "cifar10": ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"],
}


# For each whole data set: number of training images, number of test images, and the shape of one image.
SIZES: dict[DatasetName, tuple[int, int, tuple[int, int, int]]] = {
    "digits": (1442, 355, (8, 8, 1)),
    "mnist": (60000, 10000, (28, 28, 1)),
    "fashion_mnist": (60000, 10000, (28, 28, 1)),
    "cifar10": (50000, 10000, (32, 32, 3)),
    "cifar100": (50000, 10000, (32, 32, 3)),
}


def num_examples(config: TrainConfig) -> tuple[int, int]:
    """Numbers of training and of test examples of the data set of `config`, known without reading it."""
    train, test, _ = _sizes(config)
    return train, test


def images_nbytes(config: TrainConfig) -> int:
    """Total bytes of all images of the data set of `config`, computed without reading the images."""
    train, test, each = _sizes(config)
    return (train + test) * each


def _sizes(config: TrainConfig) -> tuple[int, int, int]:
    """Numbers of training and of test images of the data set of `config`, and bytes of one image."""
    if config.dataset == "arrays":
        train, test, each = arrays_size(config.data_dir)
    elif config.dataset == "synthetic":
        train, test, each = synthetic_size(config)
    else:
        train, test, shape = SIZES[config.dataset]
        each = math.prod(shape)
    return min(config.train_size or train, train), min(config.test_size or test, test), each


def load_dataset(config: TrainConfig) -> Dataset:
    """Reads, downloads or makes the data set of `config`; every call returns the same bytes.

    Raises:
      UserError: files are damaged or unavailable, or there are fewer examples than asked for.
    """
    info = None
    if config.dataset == "arrays":
        info, train, test = read_arrays_folder(config.data_dir)
        check_content(config.data_dir)
    elif config.dataset == "synthetic":
        train, test = make_synthetic(config)
    elif config.dataset == "digits":
        train, test = read_digits()
    elif config.dataset == "cifar10":
        train, test = read_cifar10(config.data_dir)
    elif config.dataset == "cifar100":
        train, test = read_cifar100(config.data_dir)
    else:
        train, test = read_idx(config.data_dir, {"mnist": MNIST, "fashion_mnist": FASHION_MNIST}[config.dataset])
    train = _first(train, config.train_size, "--train-size")
    evaluated = train if config.evaluate_on == "train" else test
    test = _first(evaluated, config.test_size, "--test-size")
    if info is not None:  # its digest covers all arrays; reading them all again would take minutes
        digest = hashlib.sha256(f"{info.sha256} {len(train[0])} {len(test[0])}".encode()).hexdigest()
    else:
        arrays: Arrays = {
            "train_images": train[0],
            "train_labels": train[1],
            "test_images": test[0],
            "test_labels": test[1],
        }
        digest = arrays_sha256(arrays)
    height, width, channels = train[0].shape[1:]
    return Dataset(config.dataset, _spec(config, info, (height, width, channels)), *train, *test, digest)


def dataset_of(name: DatasetName, spec: DataSpec, images: Images) -> Dataset:
    """A data set made of `images`; all labels are 0.

    Args:
      name: of the data set that the network was trained on.
      images: uint8 (N, H, W, C), values 0 to 255, of the shape of `spec`. They are rescaled to its value range.
    """
    if spec.largest != 255:
        images = np.round(images * (spec.largest / 255)).astype(np.uint8)
    split = images, np.zeros(len(images), dtype=np.int64)
    return Dataset(name, spec, *split, *split, sha256="")


def data_spec(config: TrainConfig) -> DataSpec:
    """The description of the data set of `config`, without reading its images."""
    if config.dataset == "arrays":
        info, (images, _), _ = read_arrays_folder(config.data_dir)
        height, width, channels = images.shape[1:]
        return _spec(config, info, (height, width, channels))
    shape = SIZES[config.dataset][2] if config.dataset in SIZES else config.image_shape or SYNTHETIC_SHAPE
    return _spec(config, None, shape)


def _spec(config: TrainConfig, info: ArraysInfo | None, image_shape: tuple[int, int, int]) -> DataSpec:
    """`info` describes a folder of arrays and is None for other data sets."""
    if info is None:
        names = CLASS_NAMES.get(config.dataset, list(map(str, range(config.num_classes or 10))))
        mean, std, largest = NORMALISATION[config.dataset]
    else:
        names, (mean, std, largest) = info.class_names, info.normalisation
    alike = image_shape[2] // len(mean)  # channels with the same normalisation
    return DataSpec(
        image_shape=image_shape,
        class_names=names,
        largest=largest,
        shift=[float32(value * largest) for value in mean] * alike,
        scale=[float32(1 / (value * largest)) for value in std] * alike,
    )


def _first(split: Split, size: int | None, option: str) -> Split:
    images, labels = split
    if size is not None and size > len(images):
        raise UserError(f"{option} {size}: there are only {len(images)} examples")
    return images[:size], labels[:size]
