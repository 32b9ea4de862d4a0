"""Reads image files of any usual format as pictures of 8 bits, and says what it had to assume."""

import warnings
from collections.abc import Sequence
from enum import IntFlag
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from common.data.formats import Fit
from common.platform.errors import UserError
from common.platform.files import file_error_reason
from common.spec.options import ImageShape

# Pixels that an image may have: reading takes up to 16 bytes for each, however small the file is. Pillow warns above
# this number, and refuses twice as many.
MOST_PIXELS = Image.MAX_IMAGE_PIXELS = 50_000_000
BITS_PER_SAMPLE, PHOTOMETRIC, WHITE_IS_ZERO = 258, 262, 0  # tags of TIFF 6.0 and a value of the second
ORIENTATION = 274  # a tag of Exif


class Remark(IntFlag):
    """What had to be assumed to read an image, since its file does not say it; and what was cut off."""

    WHITE_VALUE = 4
    BACKGROUND = 8
    CROPPED = 16
    OTHER_WAY_ROUND = 32


REMARKS = {
    Remark.WHITE_VALUE: "16 bits, and no word on which value is white; 65535 was taken",
    Remark.BACKGROUND: "transparent in places; a white background was taken",
    Remark.CROPPED: "more than a quarter was cut off",
    Remark.OTHER_WAY_ROUND: "less would be cut off with height and width exchanged: --image-shape {1} {0} {2}",
}
MUCH = 0.25  # of an image that may be cut off without a remark


class Picture(NamedTuple):
    """Pixels: uint8 (H, W, C)."""

    pixels: NDArray[np.uint8]
    flags: Remark


def remarks(flags: Sequence[int] | NDArray[np.uint8], image_shape: ImageShape) -> list[str]:
    """A line for each kind of remark; `flags` has those of each image."""
    flags = np.asarray(flags, dtype=np.uint8)
    counts = {kind: np.count_nonzero(flags & kind) for kind in Remark}
    return [
        f"{count:,} of {len(flags):,} images: {REMARKS[kind].format(*image_shape)}"
        for kind, count in counts.items()
        if count
    ]


def read_image(path: Path, image_shape: ImageShape, fit: Fit) -> Picture:
    """Reads an image, upright and fitted to `image_shape`. Raises UserError if it can't be read."""
    height, width, channels = image_shape
    mode = "RGB" if channels == 3 else "L"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow, about damaged metadata
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as opened:
                turned = opened.getexif().get(ORIENTATION, 1) in (5, 6, 7, 8)  # by 90 degrees
                opened.draft(mode, (height, width) if turned else (width, height))  # a JPEG no larger than needed
                image, white_assumed = _in_bytes(opened, ImageOps.exif_transpose(opened))
                image, background_assumed = _on_white(image)
                image = image.convert(mode)
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise UserError(f"{path}: has more than {MOST_PIXELS:,} pixels; make it smaller") from None
    except Exception as error:  # noqa: BLE001 - of damaged files Pillow's readers raise whatever Python does
        raise UserError(f"{path}: {file_error_reason(error)}") from None
    flags = white_assumed * Remark.WHITE_VALUE | background_assumed * Remark.BACKGROUND
    if fit == "crop" and (lost := _cut_off(image.size, width, height)) > MUCH:
        flags |= Remark.CROPPED
        flags |= Remark.OTHER_WAY_ROUND if _cut_off(image.size, height, width) < lost else 0
    fitted: Any = {"crop": ImageOps.fit, "pad": ImageOps.pad, "stretch": Image.Image.resize}[fit]
    pixels = fitted(image, (width, height), Image.Resampling.BILINEAR)
    return Picture(np.asarray(pixels, dtype=np.uint8).reshape(image_shape), Remark(flags))


def _cut_off(size: tuple[int, int], width: int, height: int) -> float:
    """The share of an image of this size (width, height) that is cut off for a width and height."""
    ratio = size[0] / size[1] / (width / height)
    return 1 - min(ratio, 1 / ratio)


def _on_white(image: Image.Image) -> tuple[Image.Image, bool]:
    """Lays an image of 8 bits on white, as viewers show it; says whether white can be seen anywhere."""
    if not image.has_transparency_data:
        return image, False
    coloured = image.convert("RGBA")
    if coloured.getchannel("A").getextrema() == (255, 255):
        return coloured, False
    background = Image.new("RGB", image.size, "white")
    background.paste(coloured, mask=coloured)
    return background, True


def _in_bytes(opened: Image.Image, image: Image.Image) -> tuple[Image.Image, bool]:
    """Reduces pixels of more than 8 bits to 8, since Pillow would clip larger values; says whether white was assumed.

    Raises ValueError for pixels whose value for white is unknown.

    Args:
      opened: as read from the file; `image` is made of it.
    """
    if opened.format == "PPM" and image.mode == "I":  # Pillow has scaled it from the largest value in its header
        return _scaled(image, 65535), False
    if image.mode in ("I", "F"):
        kind = "floating-point numbers" if image.mode == "F" else "32-bit integers"
        raise ValueError(f"its pixels are {kind}, which need not end at white; save it with 8 or 16 bits")
    if not image.mode.startswith("I;16"):
        return image, False
    tags = getattr(opened, "tag_v2", {})  # of a TIFF
    (bits,) = tags.get(BITS_PER_SAMPLE, (16,))
    return _scaled(image, 2**bits - 1, inverted=tags.get(PHOTOMETRIC) == WHITE_IS_ZERO), bits == 16


def _scaled(image: Image.Image, white: int, inverted: bool = False) -> Image.Image:
    values = np.minimum(np.asarray(image, dtype=np.uint32), white)
    values = white - values if inverted else values
    return Image.fromarray((values * 256 // (white + 1)).astype(np.uint8))
