"""Published data sets: their sources and their readers."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from common.data.download import Source
from common.data.formats import Split, parse_cifar_binary, parse_cifar_pickle, parse_idx

# MD5 of the decompressed files. MNIST: the original files of LeCun, Cortes and Burges. Fashion-MNIST: the files of
# Zalando Research; several projects publish these MD5s. MD5s of the compressed files are not used, since servers
# compress the same content differently.
MNIST = Source(
    folder="MNIST/raw",
    md5={
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    urls=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/{}",
        "https://storage.googleapis.com/cvdf-datasets/mnist/{}",
    ),
)
FASHION_MNIST = Source(
    folder="FashionMNIST/raw",
    md5={
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
    urls=(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{}",
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/{}",
    ),
)
# MD5s of the archive's members, as listed by programs that unpack the archive (for instance rai-project/dldataset).
CIFAR10_BINARY = Source(
    folder="cifar-10-batches-bin",
    md5={
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
    urls=(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/cifar-10-binary.tar.gz",
    ),
)
# Read if a folder has these files, but never downloaded. MD5s are those of torchvision.datasets.CIFAR10.
CIFAR10_PICKLED = Source(
    folder="cifar-10-batches-py",
    md5={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
    urls=(),
)

# MD5s of the archive's members, as listed by the same project. They were not checked against a copy of the files.
CIFAR100_BINARY = Source(
    folder="cifar-100-binary",
    md5={"train.bin": "6172c7755cfe09b2fe270c85cebc1b15", "test.bin": "4499cfba6c016c1be1438163640a0898"},
    urls=("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
)
# MD5s are those of torchvision.datasets.CIFAR100.
CIFAR100_PICKLED = Source(
    folder="cifar-100-python",
    md5={"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    urls=(),
)


def read_idx(data_dir: Path, source: Source) -> tuple[Split, Split]:
    """MNIST or Fashion-MNIST: 60,000 training and 10,000 test images of 28 x 28."""
    paths = source.fetch(data_dir)
    splits = []
    for part in ("train", "t10k"):
        names = (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
        images, labels = (parse_idx(source.read(paths[name], name), str(paths[name])) for name in names)
        splits.append((images[..., None], labels.astype(np.int64)))
    return splits[0], splits[1]


def read_cifar10(data_dir: Path) -> tuple[Split, Split]:
    """CIFAR-10: 50,000 training and 10,000 test images of 32 x 32 in colour.

    Reads the pickled files if only these are complete.
    """
    if _only_pickled(data_dir, CIFAR10_BINARY, CIFAR10_PICKLED):
        return _read_cifar(data_dir, CIFAR10_PICKLED, parse_cifar_pickle)
    return _read_cifar(data_dir, CIFAR10_BINARY, parse_cifar_binary)


def read_cifar100(data_dir: Path) -> tuple[Split, Split]:
    """CIFAR-100 with its fine labels: as many images as CIFAR-10, in 100 classes."""
    if _only_pickled(data_dir, CIFAR100_BINARY, CIFAR100_PICKLED):
        return _read_cifar(data_dir, CIFAR100_PICKLED, partial(parse_cifar_pickle, labels_key=b"fine_labels"))
    return _read_cifar(data_dir, CIFAR100_BINARY, partial(parse_cifar_binary, label_bytes=2))


def _only_pickled(data_dir: Path, binary: Source, pickled: Source) -> bool:
    return len(pickled.ready(data_dir)) == len(pickled.md5) and len(binary.ready(data_dir)) < len(binary.md5)


def _read_cifar(data_dir: Path, source: Source, parse: Callable[[bytes, str], Split]) -> tuple[Split, Split]:
    """Training and test set; the last file of `source` is the test set."""
    paths = source.fetch(data_dir)
    parts = [parse(source.read(paths[name], name), str(paths[name])) for name in source.md5]
    images, labels = (np.concatenate([part[index] for part in parts[:-1]]) for index in (0, 1))
    return (images, labels), parts[-1]
