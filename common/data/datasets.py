"""Data sets as uint8 arrays, the same bytes for every implementation, and how they are normalised."""

import hashlib
import importlib.machinery
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.data.arrays import read_arrays_folder
from common.data.download import Source
from common.data.formats import Images, Labels, parse_cifar10_binary, parse_cifar10_pickle, parse_idx, read_bytes
from common.platform.errors import UserError
from common.platform.files import Arrays, arrays_sha256
from common.spec.batches import STREAM_SYNTHETIC, random_bits
from common.spec.options import DatasetName, TrainConfig
from common.spec.update_rule import float32


@dataclass(frozen=True)
class Dataset:
    """Training and test examples in memory.

    Attributes:
      train_images, test_images: uint8 (N, H, W, C).
      train_labels, test_labels: int64 (N,), 0 up to num_classes - 1.
      class_names: what to call each class, in the order of the labels.
      shift, scale: float32 (C,): a network sees (image - shift) * scale, in its own precision.
      sha256: hex digest over the four arrays.
    """

    name: DatasetName
    num_classes: int
    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels
    class_names: list[str]
    shift: NDArray[np.float32]
    scale: NDArray[np.float32]
    sha256: str

    @property
    def image_shape(self) -> tuple[int, int, int]:
        height, width, channels = self.train_images.shape[1:]
        return height, width, channels

    @property
    def nbytes(self) -> int:
        """Of all images."""
        return self.train_images.nbytes + self.test_images.nbytes


# Mean and standard deviation of each channel over the training images, as shares of the largest pixel
# value. MNIST: pytorch/examples; Fashion-MNIST and CIFAR-10: as in many public training scripts. Digits
# and synthetic: of the images made here; tests compute all those again that they have data for.
NORMALISATION: dict[DatasetName, tuple[tuple[float, ...], tuple[float, ...], int]] = {
    "digits": ((0.3051,), (0.3762,), 16),
    "mnist": ((0.1307,), (0.3081,), 255),
    "fashion_mnist": ((0.2860,), (0.3530,), 255),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), 255),
    "synthetic": ((0.5,), (0.2557,), 255),
}

# MD5 of the decompressed MNIST files: the originals of LeCun, Cortes and Burges; of Fashion-MNIST: as
# several projects publish them for the files of Zalando Research. Gzip's own checksum is not used, since
# the same content is compressed differently at different places.
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
# The members' MD5s as apps that unpack the archive list them (rai-project/dldataset among others).
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
# Read where a folder holds it, never downloaded; MD5s as in torchvision.datasets.CIFAR10.
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

# As the data sets' authors name their classes, in the order of the labels; others are called by their numbers.
CLASS_NAMES: dict[DatasetName, list[str]] = {
    "fashion_mnist": ["T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Boot"],
    "cifar10": ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"],
}

Split = tuple[Images, Labels]


def load_dataset(config: TrainConfig) -> Dataset:
    """Reads, downloads or makes the data set of `config`; every call gives the same bytes.

    Raises:
      UserError: files that are damaged or can be had nowhere, more examples asked for than there are.
    """
    names = list(map(str, range(10)))
    arrays_info = None
    if config.dataset == "arrays":
        arrays_info, train, test = read_arrays_folder(config.data_dir)
        names = arrays_info.class_names
    elif config.dataset == "synthetic":
        names = list(map(str, range(config.num_classes or 10)))
        train, test = make_synthetic(config)
    elif config.dataset == "digits":
        train, test = read_digits()
    elif config.dataset == "cifar10":
        train, test = read_cifar10(config.data_dir)
    else:
        source = MNIST if config.dataset == "mnist" else FASHION_MNIST
        train, test = read_idx(config.data_dir, source)
    names = CLASS_NAMES.get(config.dataset, names)
    train = _first(train, config.train_size, "--train-size")
    test = _first(test, config.test_size, "--test-size")

    mean, std, largest = arrays_info.normalisation if arrays_info else NORMALISATION[config.dataset]
    channels = train[0].shape[-1]
    shift = np.array([float32(value * largest) for value in mean] * (channels // len(mean)), dtype=np.float32)
    scale = np.array([float32(1 / (value * largest)) for value in std] * (channels // len(std)), dtype=np.float32)
    arrays: Arrays = {
        "train_images": train[0],
        "train_labels": train[1],
        "test_images": test[0],
        "test_labels": test[1],
    }
    if arrays_info:  # whose digest is over all of it, made once: reading that again would take minutes
        digest = hashlib.sha256(f"{arrays_info.sha256} {len(train[0])} {len(test[0])}".encode()).hexdigest()
    else:
        digest = arrays_sha256(arrays)
    return Dataset(config.dataset, len(names), *train, *test, names, shift, scale, digest)


def _first(split: Split, size: int | None, option: str) -> Split:
    images, labels = split
    if size is not None and size > len(images):
        raise UserError(f"{option} {size}: there are only {len(images)} examples")
    return images[:size], labels[:size]


def read_digits() -> tuple[Split, Split]:
    """scikit-learn's digits: 1,797 images of 8 x 8, values 0 to 16; every fifth of each class is for testing.

    The file that scikit-learn ships is read without importing scikit-learn, which takes over a second;
    tests hold the arrays against sklearn.datasets.load_digits.
    """
    package = importlib.machinery.PathFinder.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise UserError("--dataset digits: scikit-learn, which holds the data, is not installed")
    path = Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(io.BytesIO(read_bytes(path)), delimiter=",", dtype=np.uint8)
    images, labels = table[:, :-1].reshape(-1, 8, 8, 1), table[:, -1].astype(np.int64)
    # Position of each example among those of its class.
    position = np.empty(len(labels), dtype=np.int64)
    for label in range(10):
        members = np.flatnonzero(labels == label)
        position[members] = np.arange(len(members))
    test = position % 5 == 4
    return (images[~test], labels[~test]), (images[test], labels[test])


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
    """CIFAR-10: 50,000 training and 10,000 test images of 32 x 32 in colour; pickled if only that is there."""
    source, parse = CIFAR10_BINARY, parse_cifar10_binary
    pickled = CIFAR10_PICKLED.ready(data_dir)
    if len(pickled) == len(CIFAR10_PICKLED.md5) and len(source.ready(data_dir)) < len(source.md5):
        source, parse = CIFAR10_PICKLED, parse_cifar10_pickle
    paths = source.fetch(data_dir)
    parts = [parse(source.read(paths[name], name), str(paths[name])) for name in source.md5]
    images, labels = (np.concatenate([part[index] for part in parts[:-1]]) for index in (0, 1))
    return (images, labels), parts[-1]


def make_synthetic(config: TrainConfig) -> tuple[Split, Split]:
    """Images made from the seed: seven parts of noise and one part of a pattern that belongs to the class."""
    shape = config.image_shape or (28, 28, 1)
    num_classes = config.num_classes or 10
    size = int(np.prod(shape))

    def random_bytes(count: int, part: int) -> NDArray[np.uint8]:
        bits = random_bits(-(-count * size // 8), config.seed, STREAM_SYNTHETIC, part)
        return bits.astype("<u8").view(np.uint8)[: count * size].reshape(count, *shape)

    patterns = random_bytes(num_classes, 0) >> 3
    splits = []
    for part, count in ((1, config.train_size or 8192), (3, config.test_size or 1024)):
        labels = (random_bits(count, config.seed, STREAM_SYNTHETIC, part + 1) % np.uint64(num_classes)).astype(np.int64)
        noise = random_bytes(count, part)
        splits.append((noise - (noise >> 3) + patterns[labels], labels))
    return splits[0], splits[1]
