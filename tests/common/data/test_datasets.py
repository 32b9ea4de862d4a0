import gzip
import hashlib
import pickle
import sys
from dataclasses import replace

import numpy as np
import pytest
from conftest import run

from common.data.datasets import DATASETS, load_dataset
from common.platform.errors import UserError
from common.spec.options import TrainConfig


def test_digits_are_scikit_learns(tmp_path):
    # scikit-learn takes a second to import, so it is imported in a process of its own.
    code = (
        "import sys, numpy as np; from sklearn.datasets import load_digits; d = load_digits();"
        "np.savez(sys.argv[1], images=d.images, labels=d.target)"
    )
    run(sys.executable, "-c", code, tmp_path / "digits.npz")
    published = np.load(tmp_path / "digits.npz")

    def pairs(images, labels):
        return [(image.astype(np.uint8).tobytes(), int(label)) for image, label in zip(images, labels, strict=True)]

    dataset = load_dataset(TrainConfig())
    ours = pairs(dataset.train_images, dataset.train_labels) + pairs(dataset.test_images, dataset.test_labels)
    assert sorted(ours) == sorted(pairs(published["images"], published["labels"]))


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


def test_synthetic_images_have_the_shape_and_number_asked_for_and_come_from_the_seed():
    options = {"dataset": "synthetic", "image_shape": (5, 6, 2), "train_size": 70, "test_size": 20}
    dataset = load_dataset(TrainConfig(**options))
    assert dataset.train_images.shape == (70, 5, 6, 2) and dataset.test_images.shape == (20, 5, 6, 2)
    assert set(dataset.train_labels) == set(range(10)) and dataset.train_images.dtype == np.uint8
    assert load_dataset(TrainConfig(**options)).sha256 == dataset.sha256
    assert load_dataset(TrainConfig(**options, seed=1)).sha256 != dataset.sha256
    assert not np.array_equal(dataset.train_images[:20], dataset.test_images)


def test_sizes_take_the_first_examples_and_no_more_than_there_are():
    dataset, whole = load_dataset(TrainConfig(train_size=100, test_size=10)), load_dataset(TrainConfig())
    assert np.array_equal(dataset.train_images, whole.train_images[:100])
    assert np.array_equal(dataset.test_labels, whole.test_labels[:10])
    with pytest.raises(UserError, match="--train-size 1443: there are only 1442"):
        load_dataset(TrainConfig(train_size=1443))


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
    known = DATASETS["mnist"]
    assert ours.train_images.mean() / known.largest == pytest.approx(known.mean[0], abs=5e-5)
    assert ours.train_images.std() / known.largest == pytest.approx(known.std[0], abs=5e-5)


def test_a_damaged_file_is_named_and_refused(tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for content, message in (
        (gzip.compress(b"another content"), "is damaged or another file"),
        (gzip.compress(b"cut off")[:-8], "cannot be read"),
    ):
        for name in DATASETS["mnist"].sources[0].md5:
            (raw / f"{name}.gz").write_bytes(content)
        with pytest.raises(UserError, match=f"train-images-idx3-ubyte.gz.* {message}"):
            load_dataset(TrainConfig(dataset="mnist", data_dir=tmp_path))


# --- CIFAR: made-up batches in the published formats, binary and pickled ---

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)
COARSE = np.array([4, 1, 14, 8])
TENS = [(np.array([3, 0, 9, 1]) + index) % 10 for index in range(6)]  # of each batch; the test batch is the last
HUNDREDS = [np.array([0, 51, 2, 99])] * 2


def as_binary(*labels):
    """`labels`: of each kind, an array."""
    records = zip(PIXELS, *labels, strict=True)
    return b"".join(bytes(map(int, own)) + image.tobytes() for image, *own in records)


def as_pickle(**labels):
    content = {name.encode(): array.tolist() for name, array in labels.items()}
    return pickle.dumps({**content, b"data": PIXELS.reshape(4, -1)}, protocol=2)


@pytest.mark.parametrize(
    ("name", "form", "labels", "write"),
    [
        ("cifar10", 0, TENS, as_binary),
        ("cifar10", 1, TENS, lambda labels: as_pickle(labels=labels)),
        ("cifar100", 0, HUNDREDS, lambda fine: as_binary(COARSE, fine)),
        ("cifar100", 1, HUNDREDS, lambda fine: as_pickle(fine_labels=fine, coarse_labels=COARSE)),
    ],
)
def test_cifar_is_found_in_either_form(tmp_path, monkeypatch, name, form, labels, write):
    known = DATASETS[name]
    source, contents = known.sources[form], [write(of_batch) for of_batch in labels]
    (tmp_path / source.folder).mkdir(parents=True)
    for file, content in zip(source.md5, contents, strict=True):
        (tmp_path / source.folder / file).write_bytes(content)
    md5 = {file: hashlib.md5(content).hexdigest() for file, content in zip(source.md5, contents, strict=True)}
    monkeypatch.setitem(DATASETS, name, replace(known, sources=(replace(source, md5=md5),)))
    found = load_dataset(TrainConfig(dataset=name, data_dir=tmp_path))
    assert np.array_equal(found.train_images, np.tile(PIXELS.transpose(0, 2, 3, 1), (len(labels) - 1, 1, 1, 1)))
    assert np.array_equal(found.train_labels, np.concatenate(labels[:-1]))
    assert np.array_equal(found.test_labels, labels[-1])
    if name == "cifar100":
        assert [found.class_names[label] for label in (0, 51, 99)] == ["apple", "mushroom", "worm"]
