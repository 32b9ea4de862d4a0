"""Readers for the file formats of data sets: IDX, CIFAR's binary format and CIFAR's pickled format."""

import gzip
import math
import pickle
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from common.platform.errors import UserError

Images = NDArray[Any]  # uint8, 0 to 255; of arrays of your own also float32
Labels = NDArray[np.int64]
Split = tuple[Images, Labels]  # the training or the test set
# Makes the training and the test set of (path, content) of each file of a data set.
Parse = Callable[[Iterator[tuple[str, bytes]]], tuple[Split, Split]]

Fit = Literal["crop", "pad", "stretch"]  # how an image of another shape is fitted to the data set's shape

CIFAR_SHAPE = (3, 32, 32)  # as stored: channel, row, column


def read_bytes(path: Path) -> bytes:
    """The content of a file, decompressed if its name ends in .gz. Raises UserError if the file can't be read."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            return file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None


def parse_idx(content: bytes, source: str) -> NDArray[np.uint8]:
    """The array of an IDX file of unsigned bytes.

    Format (as published with MNIST): two zero bytes, the type (8: unsigned byte), the number of
    dimensions, each dimension as a big-endian 32-bit integer, then the values, last dimension fastest.
    """
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise UserError(f"{source}: not an IDX file of unsigned bytes")
    header = 4 + 4 * content[3]
    if len(content) < header:
        raise UserError(f"{source}: ends within its header")
    shape = tuple(int(size) for size in np.frombuffer(content[4:header], dtype=">u4"))
    expected = header + math.prod(shape)
    if len(content) != expected:
        raise UserError(f"{source}: {len(content)} bytes, its header announces {expected}")
    try:
        return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape).copy()  # writable, for torch
    except ValueError as error:  # no bytes at all, but one dimension is too large for NumPy
        raise UserError(f"{source}: {error}") from None


def parse_idx_files(files: Iterator[tuple[str, bytes]]) -> tuple[Split, Split]:
    """Training and test set of four IDX files: the training images and their labels, then those for testing."""
    train_images, train_labels, test_images, test_labels = (parse_idx(content, path) for path, content in files)
    train = train_images[..., None], train_labels.astype(np.int64)
    return train, (test_images[..., None], test_labels.astype(np.int64))


def parse_cifar_files(
    files: Iterator[tuple[str, bytes]], label_bytes: int = 1, labels_key: bytes = b"labels"
) -> tuple[Split, Split]:
    """Training and test set of CIFAR's files, which are binary (.bin) or pickled; the last file is the test set."""
    *train, test = [
        parse_cifar_binary(content, path, label_bytes)
        if ".bin" in Path(path).suffixes
        else parse_cifar_pickle(content, labels_key)
        for path, content in files
    ]
    images, labels = (np.concatenate(arrays) for arrays in zip(*train, strict=True))
    return (images, labels), test


def parse_cifar_binary(content: bytes, source: str, label_bytes: int = 1) -> tuple[Images, Labels]:
    """Images uint8 (N, 32, 32, 3) and labels int64 (N,); a file consists of records: the label and 3072 pixel values.

    Args:
      label_bytes: bytes of the label. CIFAR-10 has 1. CIFAR-100 has 2: the coarse label, then the fine one, which is
        returned.
    """
    record = label_bytes + int(np.prod(CIFAR_SHAPE))
    if not content or len(content) % record:
        raise UserError(f"{source}: {len(content)} bytes are no whole number of records of {record}")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, record)
    return _channels_last(records[:, label_bytes:]), records[:, label_bytes - 1].astype(np.int64)


def parse_cifar_pickle(content: bytes, labels_key: bytes = b"labels") -> tuple[Images, Labels]:
    """Images uint8 (N, 32, 32, 3) and labels int64 (N,) of a file whose checksum is known.

    Args:
      labels_key: `fine_labels` in CIFAR-100.
    """
    batch = pickle.loads(content, encoding="bytes")  # noqa: S301 - `Source.read` has compared the checksum
    pixels = batch[b"data"].reshape(-1, int(np.prod(CIFAR_SHAPE)))
    return _channels_last(pixels), np.asarray(batch[labels_key], dtype=np.int64)


def _channels_last(pixels: NDArray[np.uint8]) -> Images:
    return np.ascontiguousarray(pixels.reshape(-1, *CIFAR_SHAPE).transpose(0, 2, 3, 1))
