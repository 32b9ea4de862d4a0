"""Readers for the file formats of data sets: IDX, CIFAR's binary format and CIFAR's pickled format."""

import gzip
import math
import pickle
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.platform.errors import UserError

Images = NDArray[Any]  # uint8, 0 to 255; of arrays of your own also float32
Labels = NDArray[np.int64]
Split = tuple[Images, Labels]  # the training or the test set
# Makes the training and the test set of (path, content) of each file of a data set.
Parse = Callable[[Iterator[tuple[str, bytes]]], tuple[Split, Split]]

CIFAR_SHAPE = (3, 32, 32)  # as stored: channel, row, column


def read_bytes(path: Path) -> bytes:
    """The content of a file, decompressed if its name ends in .gz. Raises UserError if the file can't be read."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            return file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None


# --- Content whose checksum is known: `Source.read` has compared it ---


def parse_idx(content: bytes) -> NDArray[np.uint8]:
    """The array of an IDX file of unsigned bytes.

    Format (as published with MNIST): two zero bytes, the type (8: unsigned byte), the number of
    dimensions, each dimension as a big-endian 32-bit integer, then the values, last dimension fastest.
    """
    header = 4 + 4 * content[3]
    shape = np.frombuffer(content[4:header], dtype=">u4").astype(int)
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape).copy()  # writable, for torch


def parse_idx_files(files: Iterator[tuple[str, bytes]]) -> tuple[Split, Split]:
    """Training and test set of four IDX files: the training images and their labels, then those for testing."""
    train_images, train_labels, test_images, test_labels = (parse_idx(content) for _, content in files)
    train = train_images[..., None], train_labels.astype(np.int64)
    return train, (test_images[..., None], test_labels.astype(np.int64))


def parse_cifar_files(
    files: Iterator[tuple[str, bytes]], label_bytes: int = 1, labels_key: bytes = b"labels"
) -> tuple[Split, Split]:
    """Training and test set of CIFAR's files, which are binary (.bin) or pickled; the last file is the test set.

    Args:
      label_bytes: bytes of the label in a binary file, whose records are the label and 3072 pixel values. CIFAR-10 has
        1. CIFAR-100 has 2: the coarse label, then the fine one, which is returned.
      labels_key: key of the labels in a pickled file, `fine_labels` in CIFAR-100.
    """
    splits: list[Split] = []
    for path, content in files:
        if ".bin" in Path(path).suffixes:
            records = np.frombuffer(content, dtype=np.uint8).reshape(-1, label_bytes + math.prod(CIFAR_SHAPE))
            pixels, labels = records[:, label_bytes:], records[:, label_bytes - 1]
        else:
            batch = pickle.loads(content, encoding="bytes")  # noqa: S301 - the checksum is known
            pixels, labels = batch[b"data"], np.asarray(batch[labels_key])
        images = np.ascontiguousarray(pixels.reshape(-1, *CIFAR_SHAPE).transpose(0, 2, 3, 1))
        splits.append((images, labels.astype(np.int64)))
    *train, test = splits
    all_images, all_labels = zip(*train, strict=True)
    return (np.concatenate(all_images), np.concatenate(all_labels)), test
