"""Data sets of any size as memory-mapped array files: only the parts in use are loaded into memory.

A folder contains `train_images.npy` and `test_images.npy`, uint8 or float32 (N, H, W, C); `train_labels.npy` and
`test_labels.npy`, int64 (N,); and `dataset.json`, which is written last.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, FiniteFloat

from common.data.formats import Split
from common.platform.errors import UserError
from common.platform.files import arrays_sha256, lock_file, read_json_model, write_json_model, writing
from common.spec.options import MAX_CLASSES, MAX_SIDE, ClassNames

DATASET_FILE = "dataset.json"
SMALLEST_STD = 1e-6  # of a channel; one that is the same in all images is taken to have it
WHITE = {"uint8": 255, "float32": 1}  # what the mean and the standard deviation of images of each type are divided by
PIXELS_AT_A_TIME = 2**22  # pixel values that are converted to 64 bits at a time: 32 MiB


class ArraysInfo(BaseModel, frozen=True, extra="forbid"):
    """The content of `dataset.json`."""

    schema_version: Literal[1] = 1
    class_names: ClassNames  # in the order of the labels
    mean: list[FiniteFloat]  # of each channel over the training images; that of uint8 divided by 255, as is `std`
    std: list[Annotated[FiniteFloat, Field(ge=SMALLEST_STD)]]
    sha256: str  # hex digest over the four arrays
    source: str = ""  # the state of what they were made of, see `made_once`


def array_path(folder: Path, part: str, kind: str) -> Path:
    """Path of one array file: `part` is train or test, `kind` is images or labels."""
    return folder / f"{part}_{kind}.npy"


def read_arrays_folder(folder: Path) -> tuple[ArraysInfo, Split, Split]:
    """Description, training set and test set of a folder; the images are memory-mapped, not read.

    Raises UserError if a file is missing or damaged.
    """
    info = read_json_model(ArraysInfo, folder / DATASET_FILE)
    train, test = (
        (_load(array_path(folder, part, "images")), np.array(_load(array_path(folder, part, "labels"))))
        for part in ("train", "test")
    )
    return info, train, test


def _load(path: Path) -> Any:
    """The array of an `.npy`, memory-mapped, or those of an `.npz`, by name. Raises UserError."""
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        return dict(loaded) if path.suffix == ".npz" else loaded
    except Exception as error:  # noqa: BLE001 - of a damaged header NumPy raises whatever Python's own parser does
        raise UserError(f"{path}: not a readable {path.suffix} file: {error}") from None


def made_once(folder: Path, option: str, state: str, make: Callable[[], None]) -> Path:
    """Returns `folder`. If it has no arrays yet, `make` writes them there; other processes wait meanwhile.

    Args:
      option: the option and the value that name the user's images.
      state: changes when these images do.

    Raises:
      UserError: the images have changed since the arrays were made.
      FileError: the folder can't be written.
    """
    with writing(folder), lock_file(folder.with_name(f".{folder.name}.lock"), wait=True):
        if not (folder / DATASET_FILE).exists():  # it is written last: an interrupted conversion begins again
            make()
    if read_json_model(ArraysInfo, folder / DATASET_FILE).source != state:
        raise UserError(f"{option}: has changed since {folder} was made of it; remove that folder")
    return folder


# What the arrays of an .npz are called: training images and labels, then those for testing, which may be missing.
NPZ_NAMES = (
    ("train_images", "train_labels", "test_images", "test_labels"),
    ("x_train", "y_train", "x_test", "y_test"),
    ("images", "labels"),
)


def arrays_of_npz(path: Path) -> Path:
    """The folder of arrays beside an `.npz`: `mine-arrays`. It is made if there is none yet.

    The file has arrays with the names of `NPZ_NAMES`; without those for testing every fifth image of each class is a
    test image. Classes have the names in `class_names`, or their numbers.

    Raises:
      UserError: the file has other arrays, or has changed since the folder was made.
    """
    folder, stat = path.with_name(f"{path.stem}-arrays"), path.stat()
    option, state = f"--dataset {path}", f"{stat.st_size} {stat.st_mtime_ns}"

    def make() -> None:
        arrays = _load(path)
        names = next((names for names in NPZ_NAMES if {*names} <= arrays.keys()), None)
        if names is None:
            wanted = " or ".join(", ".join(names) for names in NPZ_NAMES)
            raise UserError(f"{option}: has the arrays {', '.join(arrays)}; should have {wanted}")
        images, labels, *of_test = (arrays[name] for name in names)
        labels = np.ravel(labels)
        if images.ndim == 3:  # grey images without an axis of channels
            images, of_test[:1] = images[..., None], [array[..., None] for array in of_test[:1]]
        if of_test:
            train, test = (images, labels), (of_test[0], np.ravel(of_test[1]))
        else:
            chosen = every_fifth(labels)
            train, test = (images[~chosen], labels[~chosen]), (images[chosen], labels[chosen])
        usual = map(str, range(int(max(part.max(initial=0) for _, part in (train, test))) + 1))
        write_arrays(folder, train, test, [*map(str, arrays.get("class_names", usual))], state)

    return made_once(folder, option, state, make)


def every_fifth(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """bool (N,): every fifth example of each class."""
    chosen = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        chosen[np.flatnonzero(labels == label)[4::5]] = True
    return chosen


def write_arrays(folder: Path, train: Split, test: Split, class_names: list[str], source: str = "") -> None:
    """Makes a data set of arrays that you have, for `--dataset FOLDER`.

    Args:
      folder: is made; must not hold a data set.
      train, test: images, uint8 or float32 (N, H, W, C) with any number of channels; labels, integers (N,), from 0.
        Networks get them normalised: less the mean of a channel, divided by its standard deviation.
      class_names: in the order of the labels; MAX_CLASSES at most.
      source: see `made_once`.

    Raises UserError for arrays of another type or shape, values that are not finite, labels without a class, a single
    class, or a folder that holds a data set.
    """
    if (folder / DATASET_FILE).exists():
        raise UserError(f"{folder}: holds a data set already; name another folder")
    if not 2 <= len(class_names) <= MAX_CLASSES:
        raise UserError(f"{len(class_names)} class names, should be 2 to {MAX_CLASSES}")
    for part, (images, labels) in {"train": train, "test": test}.items():
        sides, most = images.shape[1:], len(class_names) - 1
        if images.dtype.name not in WHITE or len(sides) != 3 or not all(0 < side <= MAX_SIDE for side in sides):
            should = "should be uint8 (0 to 255) or float32 (N, H, W, C)"
            raise UserError(f"{part} images: {images.dtype} {images.shape}, {should}")
        if sides != train[0].shape[1:] or images.dtype != train[0].dtype:
            raise UserError("training and test images differ in size or type")
        if not np.isfinite(images).all():
            raise UserError(f"{part} images: some values are not finite")
        if not len(images) or labels.shape != (len(images),) or labels.min() < 0 or labels.max() > most:
            raise UserError(f"{part} labels: should be one for each of {len(images)} images, from 0 to {most}")
    folder.mkdir(parents=True, exist_ok=True)
    for part, (images, labels) in {"train": train, "test": test}.items():
        np.save(array_path(folder, part, "images"), np.ascontiguousarray(images))
        np.save(array_path(folder, part, "labels"), np.asarray(labels, np.int64))
    write_arrays_info(folder, class_names, source)


def write_arrays_info(folder: Path, class_names: list[str], source: str) -> ArraysInfo:
    """Computes mean, standard deviation and checksum of the arrays in `folder`, and writes `dataset.json`."""
    images = _load(array_path(folder, "train", "images"))
    sums = squares = np.zeros(images.shape[3])
    rows = max(1, PIXELS_AT_A_TIME // int(np.prod(images.shape[1:])))
    for start in range(0, len(images), rows):
        values = images[start : start + rows].reshape(-1, images.shape[3]).astype(np.float64) / WHITE[images.dtype.name]
        sums, squares = sums + values.sum(axis=0), squares + (values**2).sum(axis=0)
    mean, square = (total / (images.size / images.shape[3]) for total in (sums, squares))
    std = np.maximum(np.sqrt(np.maximum(square - mean**2, 0)), SMALLEST_STD)
    paths = [array_path(folder, part, kind) for part in ("train", "test") for kind in ("images", "labels")]
    digest = arrays_sha256({path.stem: _load(path) for path in paths})
    info = ArraysInfo(class_names=class_names, mean=mean.tolist(), std=std.tolist(), sha256=digest, source=source)
    write_json_model(folder / DATASET_FILE, info)
    return info
