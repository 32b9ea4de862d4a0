"""Converts a folder of images, with a sub-folder for each class, into memory-mapped arrays; see `common.data.arrays`.

Worker processes convert chunks of images. Each row is written in place and then marked as done, so that an
interrupted conversion continues where it stopped.
"""

import hashlib
import json
import os
import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from common.data.arrays import ARRAYS, DATASET_FILE, ArraysInfo, array_path, check_source, write_arrays_info
from common.data.formats import Fit
from common.data.image_files import read_image, remarks
from common.platform.cli import as_typed
from common.platform.ending import ctrl_c_waits, end_with_parent
from common.platform.errors import UserError
from common.platform.files import lock_file, write_file_atomically, write_text, writing
from common.platform.machine import num_cores
from common.spec.options import MAX_CLASSES, ImageShape
from common.spec.randomness import STREAM_SPLIT, random_bits

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}  # others are ignored
TRAIN_WORD, TEST_WORDS = "train", ("test", "val")  # in names of folders such as training_set; the first one counts
DEFAULT_SHAPE = (64, 64, 3)
FIT: Fit = "crop"
TEST_SHARE, SPLIT_SEED = 0.2, 0  # of each class for testing, if there is no folder test or val
CHUNK = 64  # images that a worker process converts at a time
LISTING_FILE, STATUS_FILE, UNREADABLE_FILE = ".listing.json", ".status", "unreadable.txt"
TO_DO, DONE, UNREADABLE = 0, 1, 2  # the status of an image; one that is done also has the flags of `Remark`


@dataclass(frozen=True)
class Conversion:
    """What is converted, into what.

    Attributes:
      images: folder with a sub-folder for each class; or with folders for training and testing (train and test or val,
        or such as training_set and test_set) that hold such sub-folders.
      output: folder for the arrays.
      image_shape: height, width and channels (1 or 3) that every image is brought to; where it has another shape, what
        is too much is cut off.
    """

    images: Path
    output: Path
    image_shape: ImageShape


def arrays_of_images(folder: Path, image_shape: ImageShape | None, console: Console) -> Path:
    """The folder of arrays beside a folder of images: `photos-arrays-64x64x3`. It is made if there is none yet.

    Raises:
      UserError: there are no images to convert, the folder can't be written, or images were added or removed since.
    """
    shape = image_shape or DEFAULT_SHAPE
    if shape[2] not in (1, 3):
        raise UserError(f"--image-shape {as_typed(shape)}: the last is 1 (grey) or 3 (colour)")
    output = folder.with_name(f"{folder.name}-arrays-{'x'.join(map(str, shape))}")
    with writing(output), lock_file(output.with_name(f".{output.name}.lock"), wait=True):
        if not (output / DATASET_FILE).exists():
            convert(Conversion(folder, output, shape), console)
    check_source(output, f"--dataset {folder}", folders_state(folder))
    return output


def folders_state(source: Path) -> str:
    """Changes where files were added to the folder or its sub-folders, down to those of classes, or removed."""
    levels = [[str(source)]]
    for _ in range(2):
        levels.append([entry.path for folder in levels[-1] for entry in os.scandir(folder) if entry.is_dir()])
    folders = sorted(folder for level in levels for folder in level)
    return json.dumps([(folder.removeprefix(str(source)), Path(folder).stat().st_mtime_ns) for folder in folders])


# --- The images, their labels, and the split into training and test images ---


@dataclass(frozen=True)
class Listing:
    """The images to convert: (path within the source, label) of each; the first `num_train` are for training.

    Attributes:
      left_out: paths of the other files and folders, which are not used; hidden ones are not listed.
      deeper: paths of those images that are not in the folder of their class itself, but in one below it.
    """

    class_names: list[str]
    files: list[tuple[str, int]]
    num_train: int
    left_out: list[str]
    deeper: list[str]


def list_images(source: Path) -> Listing:
    """Every image with its label, training images first; repeated calls return the same order."""
    folders, left_out = _content(source, "")
    train_and_test = _parts(source, folders)
    class_names = folders
    if train_and_test:
        left_out += [name for name in folders if name not in train_and_test]
        (class_names, beside_train), (test_names, beside_test) = (_content(source, part) for part in train_and_test)
        left_out += beside_train + beside_test
        if unknown := sorted(set(test_names) - set(class_names)):
            of_train, of_test = train_and_test
            raise UserError(f"--dataset {source}: {of_test}/{unknown[0]} is a class that {of_train}/ doesn't have")
        train, testing = (
            [_files(source, f"{part}/{name}", left_out) for name in class_names] for part in train_and_test
        )
    else:
        train, testing = [], []
        for label, name in enumerate(class_names):
            files = _files(source, name, left_out)
            order = np.argsort(random_bits(len(files), SPLIT_SEED, STREAM_SPLIT, label), kind="stable")
            count = min(max(1, round(TEST_SHARE * len(files))), len(files) - 1) if len(files) > 1 else 0
            chosen = set(order[:count].tolist())
            testing.append([path for index, path in enumerate(files) if index in chosen])
            train.append([path for index, path in enumerate(files) if index not in chosen])
    if len(class_names) < 2:
        raise UserError(
            f"--dataset {source}: {len(class_names)} sub-folders; each class needs one, and two classes at least"
        )
    if len(class_names) > MAX_CLASSES:
        raise UserError(f"--dataset {source}: {len(class_names)} classes; {MAX_CLASSES} at most")
    for name, files in zip(class_names, train, strict=True):
        if not name.isprintable():  # tables could not show it, and bytes that are not UTF-8 can't be written
            raise UserError(f"--dataset {source}: {name!a} can't be the name of a class; rename this folder")
        if not files:
            shown = ", ".join(sorted(SUFFIXES))
            raise UserError(f"--dataset {source}: no images of class {name} for training ({shown})")
    if not any(testing):
        raise UserError(f"--dataset {source}: no images to test on")
    labelled = [(path, label) for part in (train, testing) for label, files in enumerate(part) for path in files]
    depth = 3 if train_and_test else 2
    deeper = [path for path, _ in labelled if len(Path(path).parts) > depth]
    return Listing(class_names, labelled, sum(map(len, train)), left_out, deeper)


def _parts(source: Path, folders: Sequence[str]) -> tuple[str, str] | None:
    """The folders of the training and of the test images; None if the sub-folders are the classes themselves.

    Raises UserError if they are neither: no sub-folder holds images, and nothing says which one is for training.
    """
    train = [name for name in folders if TRAIN_WORD in name.lower()]
    train = [TRAIN_WORD] if TRAIN_WORD in train else train
    test = [name for word in TEST_WORDS for name in folders if word in name.lower() and name not in train]
    test.sort(key=lambda name: name not in TEST_WORDS)
    both = (train[0], test[0]) if len(train) == 1 and test else None
    if both and both[0] == TRAIN_WORD and both[1] in TEST_WORDS:
        return both
    inside = {name: _content(source, name) for name in folders}
    if any(Path(file).suffix.lower() in SUFFIXES for _, files in inside.values() for file in files):
        return None
    if both or not any(below for below, _ in inside.values()):
        return both
    found = "; ".join(
        f"{name}: {', '.join(below[:3])}{', ...' * bool(below[3:])}" for name, (below, _) in inside.items()
    )
    raise UserError(
        f"--dataset {source}: its sub-folders hold no images, but folders ({found}); if those are the classes, name the"
        " sub-folders train and test; otherwise give the folder whose sub-folders are the classes"
    )


def _content(source: Path, folder: str) -> tuple[list[str], list[str]]:
    """Names of the sub-folders of a folder, sorted, and paths of all else in it, relative to `source`."""
    paths = [path for path in sorted((source / folder).iterdir()) if not path.name.startswith(".")]
    others = [str(path.relative_to(source)) for path in paths if not path.is_dir()]
    return [path.name for path in paths if path.is_dir()], others


def _files(source: Path, folder: str, left_out: list[str]) -> list[str]:
    """Paths of the images below a folder, relative to `source`, sorted. Adds the paths of all else to `left_out`."""
    images: list[str] = []
    for root, folders, names in os.walk(source / folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        left_out += [str(Path(root, name).relative_to(source)) for name in folders if Path(root, name).is_symlink()]
        for name in names:
            if name.startswith("."):
                continue
            path = Path(root, name)
            is_image = path.suffix.lower() in SUFFIXES and path.is_file()  # a pipe would block the reader
            (images if is_image else left_out).append(str(path.relative_to(source)))
    return sorted(images)


# --- The conversion ---


def convert(config: Conversion, console: Console) -> ArraysInfo:
    """Makes the data set, or continues an interrupted conversion. Images that can't be read are listed and left out.

    Raises UserError if there are no images, or the output folder has other content.
    """
    console.print(f"making arrays of {config.images} in {config.output}", soft_wrap=True)
    listing = list_images(config.images)
    if left_out := len(listing.left_out):
        console.print(f"files and folders left out: {left_out:,}, such as {min(listing.left_out)!a}")
    if deeper := len(listing.deeper):
        console.print(f"images in a folder within that of their class: {deeper:,}, such as {listing.deeper[0]!a}")
    _begin(config, listing)
    _decode_all(config, listing, console)
    kept = _sort_out(config, listing, console)
    console.print("mean, deviation and checksum of all pixels")
    info = write_arrays_info(config.output, listing.class_names, folders_state(config.images))
    for name in (LISTING_FILE, STATUS_FILE):
        (config.output / name).unlink()
    names = f"{', '.join(listing.class_names[:10])}{' ...' if listing.class_names[10:] else ''}"
    console.print(f"{len(listing.class_names)} classes: {names}", soft_wrap=True)
    console.print(f"{kept[0]:,} training and {kept[1]:,} test images")
    return info


def _begin(config: Conversion, listing: Listing) -> None:
    """Creates the files of a new conversion; keeps the files of the same conversion if it was begun before."""
    config.output.mkdir(parents=True, exist_ok=True)
    stats = [(config.images / path).stat() for path, _ in listing.files]
    states = [(stat.st_size, stat.st_mtime_ns) for stat in stats]
    digest = hashlib.sha256(json.dumps([listing.files, states, listing.class_names]).encode()).hexdigest()
    wanted = json.dumps({"images": len(listing.files), "sha256": digest}, indent=2) + "\n"
    path = config.output / LISTING_FILE
    if path.exists():
        if path.read_text() != wanted:
            raise UserError(f"{config.output}: images have changed since this conversion was begun; remove this folder")
        return
    if any(config.output.iterdir()):
        raise UserError(f"{config.output}: is not empty, and holds no data set")
    starts = {"train": (0, listing.num_train), "test": (listing.num_train, len(listing.files))}
    try:
        with writing(config.output):
            for part, (start, stop) in starts.items():
                images = array_path(config.output, part, "images")
                open_memmap(images, "w+", np.uint8, (stop - start, *config.image_shape))
                _take_space(images)
                labels = np.array([label for _, label in listing.files[start:stop]], dtype=np.int64)
                np.save(array_path(config.output, part, "labels"), labels)
            np.zeros(len(listing.files), np.uint8).tofile(config.output / STATUS_FILE)
        write_text(path, wanted)
    except BaseException:
        for file in config.output.iterdir():  # all of them are new; a second try finds the folder empty again
            file.unlink()
        raise


def _take_space(path: Path) -> None:
    """Reserves a file's disk space. Otherwise, on a full disk, writing to the mapped file would kill the process."""
    if hasattr(os, "posix_fallocate"):  # not on macOS
        with open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _decode_all(config: Conversion, listing: Listing, console: Console) -> None:
    status = np.fromfile(config.output / STATUS_FILE, np.uint8)
    to_do = np.flatnonzero(status == TO_DO).tolist()
    if len(to_do) < len(status):
        console.print(f"going on: {len(status) - len(to_do):,} of {len(status):,} images are done")
    bar = Progress(
        TextColumn("images"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console, transient=True
    )
    with bar, ProcessPoolExecutor(num_cores(), get_context("forkserver"), initializer=_start_worker) as pool:
        task = bar.add_task("", total=len(status), completed=len(status) - len(to_do))
        try:
            with ctrl_c_waits():
                chunks = [to_do[start : start + CHUNK] for start in range(0, len(to_do), CHUNK)]
                paths = [{index: listing.files[index][0] for index in chunk} for chunk in chunks]
                done = [pool.submit(_decode, config, listing.num_train, chunk) for chunk in paths]
            for future in as_completed(done):
                bar.advance(task, future.result())
        except BrokenProcessPool:
            raise UserError("a process that reads images was ended from outside; what it has done is kept") from None
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends the pool
    end_with_parent()


def _decode(config: Conversion, num_train: int, paths: dict[int, str]) -> int:
    """Writes images, or marks them as unreadable; returns their number. `paths`: index of an image -> its path."""
    arrays = [open_memmap(array_path(config.output, part, "images"), "r+") for part in ("train", "test")]
    status = np.memmap(config.output / STATUS_FILE, np.uint8, "r+")
    for index, path in paths.items():
        in_test = index >= num_train
        try:
            image, flags = read_image(config.images / path, config.image_shape, FIT)
        except UserError:
            status[index] = UNREADABLE
            continue
        arrays[in_test][index - in_test * num_train] = image
        status[index] = DONE | flags
    return len(paths)


def _sort_out(config: Conversion, listing: Listing, console: Console) -> tuple[int, int]:
    """Lists unreadable images and leaves them out. Returns the numbers of training and test images."""
    status = np.fromfile(config.output / STATUS_FILE, np.uint8)
    assert (status != TO_DO).all()
    unreadable = np.flatnonzero(status == UNREADABLE)
    for line in remarks(status, config.image_shape):
        console.print(line, soft_wrap=True)
    readable = status != UNREADABLE
    train, test = readable[: listing.num_train], readable[listing.num_train :]
    if len(unreadable):
        path = config.output / UNREADABLE_FILE
        write_text(path, "".join(f"{_reason(config, listing.files[index][0])}\n" for index in unreadable))
        summary = f"{len(unreadable):,} of {len(status):,} images can't be read, listed in {path}"
        if not train.any() or not test.any():
            raise UserError(f"{summary}; too few are left")
        console.print(f"{summary}: left out", soft_wrap=True)
        for part, kind in ARRAYS:
            _leave_out(array_path(config.output, part, kind), train if part == "train" else test)
    return int(train.sum()), int(test.sum())


def _reason(config: Conversion, path: str) -> str:
    try:
        read_image(config.images / path, config.image_shape, FIT)
    except UserError as error:
        return str(error)
    return f"{config.images / path}: could not be read at first"


def _leave_out(path: Path, keep: NDArray[np.bool_]) -> None:
    """Rewrites an array with only the rows of `keep`. The file changes completely or not at all.

    It has changed already if the program was interrupted after that.
    """
    array = open_memmap(path, "r")
    if len(array) == keep.sum():
        return
    assert len(array) == len(keep)
    with write_file_atomically(path) as temporary:
        shorter = open_memmap(temporary, "w+", array.dtype, (int(keep.sum()), *array.shape[1:]))
        np.take(array, np.flatnonzero(keep), axis=0, out=shorter, mode="clip")  # with "raise" NumPy would buffer all
        shorter.flush()
