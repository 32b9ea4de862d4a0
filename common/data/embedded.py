"""Data sets that need no download: the digits that come with scikit-learn, and synthetic images."""

import importlib.machinery
import io
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.data.formats import Split, read_bytes
from common.platform.errors import UserError
from common.platform.machine import check_memory
from common.spec.options import ImageShape
from common.spec.randomness import STREAM_SYNTHETIC, random_bits


def read_digits() -> tuple[Split, Split]:
    """scikit-learn's digits: 1,797 images of 8 x 8, values 0 to 16; every fifth of each class is a test image.

    Reads scikit-learn's data file without importing scikit-learn, since the import takes over a second. Tests compare
    the arrays with sklearn.datasets.load_digits.
    """
    package = importlib.machinery.PathFinder.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise UserError("--dataset digits: scikit-learn, which holds the data, is not installed")
    path = Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(io.BytesIO(read_bytes(path)), delimiter=",", dtype=np.uint8)
    images, labels = table[:, :-1].reshape(-1, 8, 8, 1), table[:, -1].astype(np.int64)
    # Position of each example among the examples of its class.
    position = np.empty(len(labels), dtype=np.int64)
    for label in range(10):
        members = np.flatnonzero(labels == label)
        position[members] = np.arange(len(members))
    test = position % 5 == 4
    return (images[~test], labels[~test]), (images[test], labels[test])


def make_synthetic(
    num_train: int, num_test: int, shape: ImageShape, num_classes: int, seed: int
) -> tuple[Split, Split]:
    """Images made from the seed: seven parts of noise and one part of a pattern for the class."""
    count, size = num_train + num_test, math.prod(shape)
    check_memory(2 * count * size, f"--dataset synthetic: {count:,} images of {' x '.join(map(str, shape))}")

    def random_bytes(count: int, part: int) -> NDArray[np.uint8]:
        bits = random_bits(-(-count * size // 8), seed, STREAM_SYNTHETIC, part)
        return bits.astype("<u8").view(np.uint8)[: count * size].reshape(count, *shape)

    patterns = random_bytes(num_classes, 0) >> 3
    splits = []
    for part, count in ((1, num_train), (3, num_test)):
        labels = (random_bits(count, seed, STREAM_SYNTHETIC, part + 1) % np.uint64(num_classes)).astype(np.int64)
        noise = random_bytes(count, part)
        splits.append((noise - (noise >> 3) + patterns[labels], labels))
    return splits[0], splits[1]
