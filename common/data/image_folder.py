"""Converts a folder of images, with a sub-folder for each class, into memory-mapped arrays; see `common.data.arrays`.

Worker processes convert chunks of images. Each row is written in place and then marked as done, so that an
interrupted conversion continues where it stopped.
"""

import hashlib
import itertools
import json
import os
import shlex
import signal
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from common.data.arrays import DATASET_FILE, ArraysInfo, array_path, open_array, write_arrays_info
from common.data.image_files import read_image, remarks
from common.data.image_listing import ImageFolderConfig, Listing, list_images
from common.platform.ending import ctrl_c_waits, end_with_parent
from common.platform.errors import UserError
from common.platform.files import write_file_atomically, write_text, writing
from common.platform.machine import num_cores

CHUNK = 64  # images that a worker process converts at a time
LISTING_FILE, STATUS_FILE, UNREADABLE_FILE = ".listing.json", ".status", "unreadable.txt"
TO_DO, DONE, UNREADABLE = 0, 1, 2  # the status of an image; one that is done also has the flags of `Remark`


def convert(config: ImageFolderConfig, console: Console) -> ArraysInfo:
    """Makes the data set, or continues an interrupted conversion.

    Raises:
      UserError: there are no images; some can't be read, with `--unreadable refuse`; or the output folder has other
        content.
    """
    listing = list_images(config)
    if left_out := len(listing.left_out):
        console.print(f"files and folders left out: {left_out:,}, such as {min(listing.left_out)!a}")
    if deeper := len(listing.deeper):
        console.print(f"images in a folder within that of their class: {deeper:,}, such as {listing.deeper[0]!a}")
    if (config.output / DATASET_FILE).exists():
        raise UserError(f"--output {config.output}: holds a data set already; name another folder")
    _begin(config, listing)
    _decode_all(config, listing, console)
    kept = _sort_out(config, listing, console)
    console.print("mean, deviation and checksum of all pixels")
    info = write_arrays_info(config.output, listing.class_names)
    for name in (LISTING_FILE, STATUS_FILE):
        (config.output / name).unlink()
    names = f"{', '.join(listing.class_names[:10])}{' ...' if listing.class_names[10:] else ''}"
    console.print(f"{len(listing.class_names)} classes: {names}", soft_wrap=True)
    console.print(f"{kept[0]:,} training and {kept[1]:,} test images; the options that use them:")
    console.print(f"--dataset arrays --data-dir {shlex.quote(str(config.output))}", soft_wrap=True)
    return info


# --- What has been done ---


def _begin(config: ImageFolderConfig, listing: Listing) -> None:
    """Creates the files of a new conversion; keeps the files of the same conversion if it was begun before."""
    config.output.mkdir(parents=True, exist_ok=True)
    made_with = config.model_dump(mode="json", include={"image_shape", "fit", "test_share", "seed"})
    stats = [(config.images / path).stat() for path, _ in listing.files]
    states = [(stat.st_size, stat.st_mtime_ns) for stat in stats]
    digest = hashlib.sha256(json.dumps([listing.files, states, listing.class_names]).encode()).hexdigest()
    wanted = json.dumps({"options": made_with, "images": len(listing.files), "sha256": digest}, indent=2) + "\n"
    path = config.output / LISTING_FILE
    if path.exists():
        if path.read_text() != wanted:
            raise UserError(
                f"--output {config.output}: a conversion of other images or with other options was begun there, or"
                " images have changed since; remove it, or name another folder"
            )
        _check_begun(config, listing)
        return
    if any(config.output.iterdir()):
        raise UserError(f"--output {config.output}: is not empty")
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


def _check_begun(config: ImageFolderConfig, listing: Listing) -> None:
    """Raises UserError if a file of the conversion that was begun is missing or damaged."""
    try:
        if (config.output / STATUS_FILE).stat().st_size != len(listing.files):
            raise UserError(f"{STATUS_FILE} should have a byte for each image")
        for part in ("train", "test"):
            for kind in ("images", "labels"):
                open_array(array_path(config.output, part, kind))
    except (OSError, UserError) as error:
        raise UserError(
            f"--output {config.output}: the conversion that was begun there can't go on ({error}); remove it, or name"
            " another folder"
        ) from None


def _take_space(path: Path) -> None:
    """Reserves a file's disk space. Otherwise, on a full disk, writing to the mapped file would kill the process."""
    if hasattr(os, "posix_fallocate"):  # not on macOS
        with open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _decode_all(config: ImageFolderConfig, listing: Listing, console: Console) -> None:
    status = np.fromfile(config.output / STATUS_FILE, np.uint8)
    to_do = np.flatnonzero(status == TO_DO)
    if len(to_do) < len(status):
        console.print(f"going on: {len(status) - len(to_do):,} of {len(status):,} images are done")
    chunks = iter([to_do[start : start + CHUNK] for start in range(0, len(to_do), CHUNK)])
    jobs = num_cores() if config.jobs == "auto" else config.jobs
    bar = Progress(
        TextColumn("images"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console, transient=True
    )
    context = get_context("forkserver")
    arguments = (config, listing)
    with bar, ProcessPoolExecutor(jobs, context, initializer=_open_arrays, initargs=arguments) as pool:
        task = bar.add_task("", total=len(status), completed=len(status) - len(to_do))
        with ctrl_c_waits():
            waiting = {pool.submit(_decode, chunk) for chunk in itertools.islice(chunks, 2 * jobs)}
        try:
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    bar.advance(task, future.result())
                    waiting |= {pool.submit(_decode, chunk) for chunk in itertools.islice(chunks, 1)}
        except BrokenProcessPool:
            raise UserError("a process that reads images was ended from outside; what it has done is kept") from None
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


class _Worker:
    """The data that a worker process keeps open."""

    config: ImageFolderConfig
    listing: Listing
    images: list[NDArray[np.uint8]]
    status: NDArray[np.uint8]


def _open_arrays(config: ImageFolderConfig, listing: Listing) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends the pool
    end_with_parent()
    _Worker.config, _Worker.listing = config, listing
    _Worker.images = [open_memmap(array_path(config.output, part, "images"), "r+") for part in ("train", "test")]
    _Worker.status = np.memmap(config.output / STATUS_FILE, np.uint8, "r+")


def _decode(indices: NDArray[np.int64]) -> int:
    """Writes the images with these indices, or marks them as unreadable; returns the number of indices."""
    for index in indices.tolist():
        path, _ = _Worker.listing.files[index]
        in_test = index >= _Worker.listing.num_train
        try:
            config = _Worker.config
            image, flags = read_image(config.images / path, config.image_shape, config.fit)
        except UserError:
            _Worker.status[index] = UNREADABLE
            continue
        _Worker.images[in_test][index - in_test * _Worker.listing.num_train] = image
        _Worker.status[index] = DONE | flags
    return len(indices)


# --- What could not be read ---


def _sort_out(config: ImageFolderConfig, listing: Listing, console: Console) -> tuple[int, int]:
    """Lists unreadable images, then refuses or omits them. Returns the numbers of training and test images."""
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
        if config.unreadable == "refuse":
            raise UserError(f"{summary}; --unreadable skip leaves them out")
        if not train.any() or not test.any():
            raise UserError(f"{summary}; too few are left")
        console.print(f"{summary}: left out")
        for part, keep in (("train", train), ("test", test)):
            for kind in ("images", "labels"):
                _leave_out(array_path(config.output, part, kind), keep)
    return int(train.sum()), int(test.sum())


def _reason(config: ImageFolderConfig, path: str) -> str:
    try:
        read_image(config.images / path, config.image_shape, config.fit)
    except UserError as error:
        return str(error)
    return f"{config.images / path}: could not be read at first"


def _leave_out(path: Path, keep: NDArray[np.bool_]) -> None:
    """Rewrites an array with only the rows of `keep`, a piece at a time. The file changes completely or not at all."""
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if len(array) == keep.sum():
        return
    kept = np.flatnonzero(keep)
    with write_file_atomically(path) as temporary:
        shorter = open_memmap(temporary, "w+", array.dtype, (len(kept), *array.shape[1:]))
        for start in range(0, len(kept), 1024):
            shorter[start : start + 1024] = array[kept[start : start + 1024]]
        shorter.flush()
