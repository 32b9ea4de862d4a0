"""Readers for the file formats of data sets: IDX, CIFAR's binary format and CIFAR's pickled format."""

import gzip
import io
import math
import pickle
import pickletools
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from common.platform.errors import UserError

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]
Split = tuple[Images, Labels]  # the training or the test set
# Makes the training and the test set of (path, content) of each file of a data set.
Parse = Callable[[Iterator[tuple[str, bytes]]], tuple[Split, Split]]

CIFAR_SHAPE = (3, 32, 32)  # as stored: channel, row, column
MOST_BYTES = 2**30  # limit for a decompressed file; the largest file of the data sets has about 155 million bytes
MOST_REMEMBERED = 2**17  # limit for memo entries in a pickled batch, which has some for each image's name


def read_bytes(path: Path) -> bytes:
    """The content of a file, decompressed if its name ends in .gz.

    Raises:
      UserError: the file can't be read, or has more than MOST_BYTES.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            return read_limited(file, str(path))
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None


def read_limited(file: IO[bytes] | gzip.GzipFile, name: str) -> bytes:
    """The content of an open file. Raises UserError for more than MOST_BYTES, to which a small file can decompress."""
    content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise UserError(f"{name}: more than {MOST_BYTES:,} bytes")
    return content


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
        else parse_cifar_pickle(content, path, labels_key)
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


def parse_cifar_pickle(content: bytes, source: str, labels_key: bytes = b"labels") -> tuple[Images, Labels]:
    """Images uint8 (N, 32, 32, 3) and labels int64 (N,); the unpickler, `_ArraysOnly`, builds no other arrays.

    Args:
      labels_key: `fine_labels` in CIFAR-100.
    """
    try:
        _check_pickle(content)
        batch = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
        pixels = np.asarray(batch[b"data"], dtype=np.uint8).reshape(-1, int(np.prod(CIFAR_SHAPE)))
        labels = np.asarray(batch[labels_key], dtype=np.int64)
    except Exception as error:  # noqa: BLE001 - Python's documentation says that a damaged pickle may raise any
        raise UserError(f"{source}: not a CIFAR batch: {error}") from None
    if labels.shape != (len(pixels),):
        raise UserError(f"{source}: {len(pixels)} images, but labels of shape {labels.shape}")
    return _channels_last(pixels), labels


def _check_pickle(content: bytes) -> None:
    """Raises ValueError for a pickle that is damaged, or whose memo would use far more memory than its content."""
    for opcode, argument, _ in pickletools.genops(content):
        # These opcodes store an object in the memo at an index. Python also allocates all entries below this index.
        remembers = opcode.name in ("PUT", "BINPUT", "LONG_BINPUT")
        if remembers and not (isinstance(argument, int) and 0 <= argument < MOST_REMEMBERED):
            raise ValueError(f"it remembers an object at place {argument}")


def _channels_last(pixels: NDArray[np.uint8]) -> Images:
    return np.ascontiguousarray(pixels.reshape(-1, *CIFAR_SHAPE).transpose(0, 2, 3, 1))


class _ByteArray:
    """Replaces numpy.ndarray while unpickling; accepts only the state of a uint8 array."""

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, _, content = state
        if dtype is not _BYTE:
            raise pickle.UnpicklingError("an array that is not of unsigned bytes")
        self.array = np.frombuffer(content, dtype=np.uint8).reshape(shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.uint8]:
        return self.array


class _ByteType:
    """Replaces numpy.dtype("u1") while unpickling; ignores its state, such as byte order, which bytes don't need."""

    def __setstate__(self, state: Any) -> None:
        del state


_BYTE = _ByteType()


def _make_array(*_: Any) -> _ByteArray:
    return _ByteArray()


def _make_type(code: Any, *_: Any) -> _ByteType:
    if code not in ("u1", b"u1"):
        raise pickle.UnpicklingError(f"an array of type {code!r}")
    return _BYTE


def _encode(text: str, encoding: str) -> bytes:
    """Replaces _codecs.encode, with which Python 3 pickles bytes for Python 2."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"text in {encoding!r}")
    return text.encode("latin1")


class _ArraysOnly(pickle.Unpickler):
    """Unpickles only containers, text, numbers and arrays of bytes; refuses any other name in the pickle.

    `_NAMES` lists the names with which NumPy 1 and 2 pickle arrays of bytes. Each name is mapped to a replacement in
    this module, so that no pickle can call functions of NumPy or Python.
    """

    _NAMES: dict[tuple[str, str], Any] = {
        ("numpy.core.multiarray", "_reconstruct"): _make_array,
        ("numpy._core.multiarray", "_reconstruct"): _make_array,
        ("numpy", "ndarray"): _ByteArray,
        ("numpy", "dtype"): _make_type,
        ("_codecs", "encode"): _encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._NAMES[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no array") from None
