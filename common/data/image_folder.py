"""Reads image files, and converts a folder of them, with a sub-folder for each class, into arrays (arrays.py)."""

import json
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.lib.format import write_array_header_1_0
from numpy.typing import NDArray
from PIL import Image, ImageOps
from rich.console import Console
from rich.progress import track

from common.data.arrays import array_path, made_once, write_arrays_info
from common.platform.cli import as_typed
from common.platform.errors import UserError
from common.platform.files import file_error_reason
from common.platform.machine import num_cores
from common.spec.options import ImageShape

# Files with others are left out.
IMAGE_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
TRAIN_WORD, TEST_WORDS = "train", ("test", "val")  # in names of folders such as training_set; the first one counts
DEFAULT_SHAPE = (64, 64, 3)
MUCH_CUT = 0.25  # of an image
IMAGES_PER_CORE = 16  # images for each core that are read before the first of them is written

LabelledPaths = list[tuple[Path, int]]  # paths of images, with their labels

warnings.filterwarnings("ignore", module="PIL")  # about damaged metadata, and large images


def arrays_of_images(folder: Path, image_shape: ImageShape | None, console: Console) -> Path:
    """The folder of arrays beside a folder of images: `photos-arrays-64x64x3`. It is made if there is none yet.

    Args:
      image_shape: height, width and channels (1 or 3) that every image is brought to.

    Raises:
      UserError: there are no images to convert, the folder can't be written, or images were added or removed since.
    """
    shape = image_shape or DEFAULT_SHAPE
    if shape[2] not in (1, 3):
        raise UserError(f"--image-shape {as_typed(shape)}: the last is 1 (grey) or 3 (colour)")
    output = folder.with_name(f"{folder.name}-arrays-{'x'.join(map(str, shape))}")
    state = folders_state(folder)
    return made_once(output, f"--dataset {folder}", state, partial(_convert, folder, output, shape, state, console))


def folders_state(source: Path) -> str:
    """Changes where files were added to the folder or its sub-folders, down to those of classes, or removed."""
    levels = [[str(source)]]
    for _ in range(2):
        levels.append([entry.path for folder in levels[-1] for entry in os.scandir(folder) if entry.is_dir()])
    folders = sorted(folder for level in levels for folder in level)
    return json.dumps([(folder.removeprefix(str(source)), Path(folder).stat().st_mtime_ns) for folder in folders])


# --- The images, their labels, and the split into training and test images ---


@dataclass(frozen=True)
class ImageListing:
    """The images to convert.

    Attributes:
      left_out: the other files, without hidden ones.
    """

    class_names: list[str]
    train: LabelledPaths
    test: LabelledPaths
    left_out: list[Path]


def list_images(source: Path) -> ImageListing:
    """Every image with its label, sorted. Raises UserError if a class has none, or there are none to test on."""
    if parts := _parts(source):
        train, test = map(_images_of_classes, parts)
        if unknown := sorted(set(test) - set(train)):
            first, second = (part.name for part in parts)
            raise UserError(f"--dataset {source}: {second}/{unknown[0]} is a class that {first}/ doesn't have")
    else:
        whole = _images_of_classes(source)
        test = {name: files[4::5] for name, files in whole.items()}
        train = {name: [path for i, path in enumerate(files) if i % 5 != 4] for name, files in whole.items()}
    if len(train) < 2:
        raise UserError(
            f"--dataset {source}: {len(train)} sub-folders; each class needs one, and two classes at least; or the"
            " sub-folders train and test have those of the classes"
        )
    for name, files in train.items():
        if not files:
            shown = ", ".join(sorted(IMAGE_SUFFIXES))
            raise UserError(f"--dataset {source}: no images of class {name} for training ({shown})")
    if not any(test.values()):
        raise UserError(f"--dataset {source}: no images to test on; a class needs five, of which one is a test image")
    of_train, of_test = (
        [(path, label) for label, name in enumerate(train) for path in images.get(name, [])] for images in (train, test)
    )
    taken = {path for path, _ in of_train + of_test}
    visible = (path for path in sorted(source.rglob("*")) if "/." not in f"/{path.relative_to(source)}")
    left_out = [path for path in visible if path.is_file() and path not in taken]
    return ImageListing([*train], of_train, of_test, left_out)


def _images_of_classes(folder: Path) -> dict[str, list[Path]]:
    return {of_class.name: _images(of_class) for of_class in _folders(folder)}


def _parts(source: Path) -> tuple[Path, Path] | None:
    """The folders of the training and of the test images; None if the sub-folders are the classes themselves."""
    folders = _folders(source)
    train = [folder for folder in folders if TRAIN_WORD in folder.name.lower()]
    test = [folder for word in TEST_WORDS for folder in folders if word in folder.name.lower() and folder not in train]
    if len(train) != 1 or not test or _images(train[0]):
        return None
    return train[0], test[0]


def _folders(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("[!.]*")) if path.is_dir()]


def _images(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("[!.]*")) if path.suffix.lower() in IMAGE_SUFFIXES]


# --- The conversion ---


def _convert(source: Path, output: Path, image_shape: ImageShape, state: str, console: Console) -> None:
    """Makes the data set. Each image that can't be read is named, and left out."""
    console.print(f"making arrays of {source} in {output}", soft_wrap=True)
    listing = list_images(source)
    if listing.left_out:
        console.print(f"left out: {len(listing.left_out):,}, such as {listing.left_out[0]}", soft_wrap=True)
    output.mkdir(exist_ok=True)
    counts = []
    for part, files in (("train", listing.train), ("test", listing.test)):
        labels = _write_images(files, array_path(output, part, "images"), image_shape, console)
        if not labels:
            raise UserError(f"--dataset {source}: none of the images in its {part} part can be read")
        np.save(array_path(output, part, "labels"), np.array(labels, np.int64))
        counts.append(len(labels))
    write_arrays_info(output, listing.class_names, state)
    console.print(f"{len(listing.class_names)} classes, {counts[0]:,} training and {counts[1]:,} test images")


def _write_images(files: LabelledPaths, path: Path, image_shape: ImageShape, console: Console) -> list[int]:
    """Writes the array of those images that can be read; returns their labels. Tells if much is cut off."""
    labels, num_cut = list[int](), 0
    header = {"descr": "|u1", "fortran_order": False}

    def read(file: tuple[Path, int]) -> tuple[NDArray[np.uint8], float] | UserError:
        try:
            return read_image(file[0], image_shape)
        except UserError as error:
            return error

    size = IMAGES_PER_CORE * num_cores()
    starts = range(0, len(files), size)
    with path.open("wb") as array, ThreadPoolExecutor(num_cores()) as pool:  # Pillow decodes without the GIL
        write_array_header_1_0(array, {**header, "shape": (len(files), *image_shape)})
        for start in track(starts, "images", console=console, transient=True, disable=not console.is_terminal):
            chunk = files[start : start + size]
            for (_, label), found in zip(chunk, pool.map(read, chunk), strict=True):
                if isinstance(found, UserError):
                    console.print(f"left out: {found}", soft_wrap=True)
                    continue
                pixels, share_cut = found
                array.write(pixels.tobytes())
                labels.append(label)
                num_cut += share_cut > MUCH_CUT
        array.seek(0)  # NumPy leaves room in a header, so that this one is as long as the first
        write_array_header_1_0(array, {**header, "shape": (len(labels), *image_shape)})
    if num_cut:
        console.print(
            f"more than a quarter of the image is cut off in {num_cut:,} of {len(labels):,} images; --image-shape"
            " HEIGHT WIDTH CHANNELS in the ratio of their sides keeps more",
            soft_wrap=True,
        )
    return labels


# --- A single image ---


def read_image(path: Path, image_shape: ImageShape) -> tuple[NDArray[np.uint8], float]:
    """An image, uint8 `image_shape`, upright, and cut at its edges to the ratio of the shape's sides; the share cut.

    What is transparent becomes white, as viewers show it; of 16 bits (PNG, TIFF), the upper 8 count.

    Raises UserError if the image can't be read.
    """
    height, width, channels = image_shape
    mode = "RGB" if channels == 3 else "L"
    try:
        with Image.open(path) as opened:
            side = max(height, width)
            opened.draft(mode, (side, side))  # a JPEG no larger than needed
            image = _on_white(_in_bytes(ImageOps.exif_transpose(opened))).convert(mode)
    except Exception as error:  # noqa: BLE001 - of damaged files Pillow's readers raise whatever Python does
        raise UserError(f"{path}: {file_error_reason(error)}") from None
    fitted = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    ratio = image.width / image.height / (width / height)
    return np.asarray(fitted, dtype=np.uint8).reshape(image_shape), 1 - min(ratio, 1 / ratio)


def _in_bytes(image: Image.Image) -> Image.Image:
    """Reduces pixels of 16 bits to 8, since Pillow would clip larger values. Raises ValueError for still more bits."""
    if image.mode in ("I", "F"):
        raise ValueError("its pixels have more than 16 bits, or a range of their own; save it with 8 bits")
    has_16 = image.mode.startswith("I;16")
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)) if has_16 else image


def _on_white(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image
    coloured = image.convert("RGBA")
    background = Image.new("RGB", image.size, "white")
    background.paste(coloured, mask=coloured)
    return background
