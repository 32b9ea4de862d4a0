import gzip
import hashlib
import pickle
import sys
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from conftest import run

from common.data.catalogue import DATASETS, read_digits
from common.data.datasets import load_dataset
from common.data.formats import parse_cifar_binary, parse_cifar_pickle, parse_idx
from common.platform.errors import UserError
from common.spec.options import DatasetName, TrainConfig


def test_the_option_has_the_names_of_the_table():
    """With mypy, which reads the table's keys, this is why a data set can't be named and lack an entry, or reversed."""
    assert get_args(DatasetName) == tuple(DATASETS)


# --- Digits ---


def test_digits_are_scikit_learns(tmp_path):
    (train_images, train_labels), (test_images, test_labels) = read_digits()
    # scikit-learn takes a second to import, so it is imported in a process of its own.
    code = (
        "import sys, numpy as np; from sklearn.datasets import load_digits; d = load_digits();"
        "np.savez(sys.argv[1], images=d.images, labels=d.target)"
    )
    run(sys.executable, "-c", code, tmp_path / "digits.npz")
    with np.load(tmp_path / "digits.npz") as published:
        images, labels = published["images"], published["labels"]
    ours = {(image.tobytes(), int(label)) for image, label in zip(train_images, train_labels, strict=True)}
    ours |= {(image.tobytes(), int(label)) for image, label in zip(test_images, test_labels, strict=True)}
    theirs = {(image.astype(np.uint8).tobytes(), int(label)) for image, label in zip(images, labels, strict=True)}
    assert len(train_images) + len(test_images) == len(images) == 1797
    assert ours == theirs


def test_the_digits_split_is_stratified_and_the_same_everywhere():
    dataset = load_dataset(TrainConfig())
    train, test = np.bincount(dataset.train_labels), np.bincount(dataset.test_labels)
    assert (len(dataset.train_labels), len(dataset.test_labels)) == (1442, 355)
    assert (test == (train + test) // 5).all()
    assert dataset.sha256 == "bfc32f9a705531c3ed8252046455ae3cbb31d45038a0be1e7474d2e2ce3e79e3"


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_normalised_training_images_have_mean_0_and_deviation_1(name):
    dataset = load_dataset(TrainConfig(dataset=name))
    images = (dataset.train_images - dataset.shift.astype(float)) * dataset.scale
    assert abs(images.mean()) < 0.01 and abs(images.std() - 1) < 0.01


# --- Synthetic ---


def test_synthetic_images_have_the_shape_and_number_asked_for_and_come_from_the_seed():
    options = {"dataset": "synthetic", "image_shape": (5, 6, 2), "train_size": 70, "test_size": 20}
    dataset = load_dataset(TrainConfig(**options))
    assert dataset.train_images.shape == (70, 5, 6, 2) and dataset.test_images.shape == (20, 5, 6, 2)
    assert set(dataset.train_labels) == set(range(10)) and dataset.num_classes == 10
    assert dataset.train_images.dtype == np.uint8 and dataset.shift.shape == dataset.scale.shape == (2,)
    assert load_dataset(TrainConfig(**options)).sha256 == dataset.sha256
    assert load_dataset(TrainConfig(**options, seed=1)).sha256 != dataset.sha256
    assert not np.array_equal(dataset.train_images[:20], dataset.test_images)


# --- Limits ---


def test_sizes_take_the_first_examples_and_no_more_than_there_are():
    dataset = load_dataset(TrainConfig(train_size=100, test_size=10))
    assert len(dataset.train_images) == len(dataset.train_labels) == 100 and len(dataset.test_images) == 10
    with pytest.raises(UserError, match="--train-size 1443: there are only 1442"):
        load_dataset(TrainConfig(train_size=1443))


# --- IDX ---


def idx(array):
    return b"\0\0\x08" + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def test_idx_is_read_as_written():
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    assert np.array_equal(parse_idx(idx(array), "f"), array)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0\x09\x01\0\0\0\x01\0",
        idx(np.zeros((2, 3), np.uint8))[:-1],
        idx(np.zeros(2, np.uint8)) + b"x",
        b"\0\0\x08\x03\0",
        b"\0\0\x08\x04" + b"\0\1\0\0" * 4,  # 2^64 bytes, a number that overflows to 0 in 64 bits
    ],
)
def test_what_is_no_idx_file_is_refused(content):
    with pytest.raises(UserError, match="^f: "):
        parse_idx(content, "f")


@pytest.mark.slow
def test_mnist_is_torchvisions(data_dir, tmp_path):
    """Both read the same files; torchvision needs them decompressed."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for path in (data_dir / "MNIST" / "raw").glob("*.gz"):
        (raw / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    code = """
import sys, numpy as np
from torchvision.datasets import MNIST
parts = [MNIST(sys.argv[1], train=train) for train in (True, False)]
np.savez(sys.argv[2], *(array for part in parts for array in (part.data.numpy(), part.targets.numpy())))
"""
    run(sys.executable, "-c", code, tmp_path, tmp_path / "theirs.npz")
    theirs = np.load(tmp_path / "theirs.npz")
    for folder in (data_dir, tmp_path):  # gzip-compressed, then raw
        ours = load_dataset(TrainConfig(dataset="mnist", data_dir=folder))
        assert np.array_equal(ours.train_images[..., 0], theirs["arr_0"])
        assert np.array_equal(ours.train_labels, theirs["arr_1"])
        assert np.array_equal(ours.test_images[..., 0], theirs["arr_2"])
        assert np.array_equal(ours.test_labels, theirs["arr_3"])
        assert ours.train_images.shape == (60000, 28, 28, 1)
    known = DATASETS["mnist"]
    assert ours.train_images.mean() / known.largest == pytest.approx(known.mean[0], abs=5e-5)
    assert ours.train_images.std() / known.largest == pytest.approx(known.std[0], abs=5e-5)


def test_a_damaged_file_is_named_and_refused(data_dir, tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for path in (data_dir / "MNIST" / "raw").glob("*.gz"):
        (raw / path.name).write_bytes(path.read_bytes())
    labels = raw / "t10k-labels-idx1-ubyte.gz"
    content = bytearray(gzip.decompress(labels.read_bytes()))
    content[100] ^= 1
    labels.write_bytes(gzip.compress(bytes(content)))
    with pytest.raises(UserError, match="t10k-labels-idx1-ubyte.gz is damaged or another file"):
        load_dataset(TrainConfig(dataset="mnist", data_dir=tmp_path))
    whole = labels.read_bytes()
    labels.write_bytes(whole[:50])
    with pytest.raises(UserError, match="t10k-labels-idx1-ubyte.gz: cannot be read"):
        load_dataset(TrainConfig(dataset="mnist", data_dir=tmp_path))
    labels.write_bytes(whole[:10] + b"\xff" * 20 + whole[30:])  # not a valid stream for zlib
    with pytest.raises(UserError, match="t10k-labels-idx1-ubyte.gz: cannot be read"):
        load_dataset(TrainConfig(dataset="mnist", data_dir=tmp_path))


# --- CIFAR-10: made-up batches in the published formats ---


@pytest.fixture
def cifar():
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (4, 3, 32, 32), dtype=np.uint8), np.array([3, 0, 9, 1])


def as_binary(pixels, labels):
    return b"".join(bytes([label]) + image.tobytes() for image, label in zip(pixels, labels, strict=True))


def as_pickle(pixels, labels, protocol=2):
    """A batch as in the published files: protocol 2, byte strings as keys, a list of labels."""
    batch = {
        b"batch_label": b"testing batch 1 of 1",
        b"labels": labels.tolist(),
        b"data": pixels.reshape(len(pixels), -1),
    }
    return pickle.dumps(batch, protocol=protocol)


def test_both_kinds_of_cifar10_give_the_same_images(cifar):
    pixels, labels = cifar
    for images, found in (parse_cifar_binary(as_binary(*cifar), "f"), parse_cifar_pickle(as_pickle(*cifar))):
        assert np.array_equal(images, pixels.transpose(0, 2, 3, 1)) and images.dtype == np.uint8
        assert np.array_equal(found, labels) and found.dtype == np.int64


def as_python_2_pickle(pixels, labels):
    """A batch as Python 2 and NumPy 1 wrote the published files: opcode by opcode, text as byte strings."""

    def text(content):
        return b"T" + len(content).to_bytes(4, "little") + content

    def integer(value):
        return b"J" + int(value).to_bytes(4, "little", signed=True)

    numbers = b"](" + b"".join(map(integer, labels)) + b"e"
    blank = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + integer(0) + b"\x85" + text(b"b") + b"\x87R"
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + integer(0) + integer(1) + b"\x87R"
    dtype += b"(" + integer(3) + text(b"|") + b"NNN" + integer(-1) + integer(-1) + integer(0) + b"tb"
    shape = integer(len(pixels)) + integer(3072) + b"\x86"
    state = b"(" + integer(1) + shape + dtype + b"\x89" + text(pixels.tobytes()) + b"t"
    return b"\x80\x02}(" + text(b"labels") + numbers + text(b"data") + blank + state + b"bu."


def test_pickles_written_by_numpy_1_under_python_2_are_read(cifar):
    images, labels = parse_cifar_pickle(as_python_2_pickle(*cifar))
    assert np.array_equal(images, cifar[0].transpose(0, 2, 3, 1)) and np.array_equal(labels, cifar[1])


def test_broken_binary_batches_are_refused(cifar):
    for content in (b"", as_binary(*cifar)[:-1]):
        with pytest.raises(UserError, match="whole number of records"):
            parse_cifar_binary(content, "f")


def load_made_up(monkeypatch, data_dir, name, source, contents):
    """Writes made-up files in the form of `source`, puts their checksums into the table, and loads the data set."""
    config = TrainConfig(dataset=name, data_dir=data_dir)
    (data_dir / source.folder).mkdir(parents=True)
    for file, content in zip(source.md5, contents, strict=True):
        (data_dir / source.folder / file).write_bytes(content)
    with pytest.raises(UserError, match="is damaged or another file"):
        load_dataset(config)
    md5 = {file: hashlib.md5(content).hexdigest() for file, content in zip(source.md5, contents, strict=True)}
    sources = tuple(replace(known, md5=md5) if known is source else known for known in DATASETS[name].sources)
    monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], sources=sources))
    return load_dataset(config)


def test_cifar10_is_found_in_either_form_and_the_test_batch_is_the_last(cifar, tmp_path, monkeypatch):
    pixels, labels = cifar
    binary, pickled = DATASETS["cifar10"].sources
    assert (binary.folder, pickled.folder) == ("cifar-10-batches-bin", "cifar-10-batches-py")
    loaded = []
    for form, source in ((as_binary, binary), (as_pickle, pickled)):
        contents = [form(pixels, (labels + index) % 10) for index in range(6)]
        loaded.append(load_made_up(monkeypatch, tmp_path / source.folder, "cifar10", source, contents))
    assert loaded[0].sha256 == loaded[1].sha256
    assert loaded[0].train_images.shape == (20, 32, 32, 3)
    assert loaded[0].test_labels.tolist() == ((labels + 5) % 10).tolist()


def test_cifar100_has_fine_labels_in_either_form(cifar, tmp_path, monkeypatch):
    pixels, _ = cifar
    coarse, fine = np.array([4, 1, 14, 8]), np.array([0, 51, 2, 99])
    records = zip(coarse, fine, pixels, strict=True)
    binary = b"".join(bytes([one, other]) + image.tobytes() for one, other, image in records)
    batch = {b"fine_labels": fine.tolist(), b"coarse_labels": coarse.tolist(), b"data": pixels.reshape(4, -1)}
    pickled = pickle.dumps(batch, protocol=2)
    sources = DATASETS["cifar100"].sources
    assert [(source.folder, *source.md5) for source in sources] == [
        ("cifar-100-binary", "train.bin", "test.bin"),
        ("cifar-100-python", "train", "test"),
    ]
    first, second = (
        load_made_up(monkeypatch, tmp_path / source.folder, "cifar100", source, [content] * 2)
        for source, content in zip(sources, (binary, pickled), strict=True)
    )
    assert first.sha256 == second.sha256 and first.num_classes == 100
    assert first.test_labels.tolist() == fine.tolist()
    assert np.array_equal(first.train_images, pixels.transpose(0, 2, 3, 1))
    assert [first.class_names[label] for label in (0, 51, 99)] == ["apple", "mushroom", "worm"]
