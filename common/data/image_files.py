"""Reads image files of any usual format as arrays of 8 bits."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from common.data.image_listing import Fit
from common.platform.errors import UserError
from common.platform.files import open_regular
from common.spec.options import ImageShape

WHITE_ASSUMED = "16 bits, and no word on which value is white; 65535 was taken"
BITS_PER_SAMPLE, PHOTOMETRIC, WHITE_IS_ZERO = 258, 262, 0  # tags of TIFF 6.0 and a value of the second


class Picture(NamedTuple):
    """Pixels: uint8 (H, W, C). white_assumed: whether the file does not say which value is white."""

    pixels: NDArray[np.uint8]
    white_assumed: bool


def read_image(path: Path, image_shape: ImageShape, fit: Fit) -> Picture:
    """Reads an image, upright and fitted to `image_shape`. Raises UserError if it can't be read."""
    height, width, channels = image_shape
    try:
        with open_regular(path), Image.open(path) as opened:
            opened.draft("RGB" if channels == 3 else "L", (width, height))  # decodes a JPEG no larger than needed
            image, white_assumed = _in_bytes(opened, ImageOps.exif_transpose(opened), path)
            image = image.convert("RGB" if channels == 3 else "L")
    except Exception as error:  # noqa: BLE001 - of damaged files Pillow's readers raise whatever Python does
        raise UserError(f"{path}: {error}") from None
    resampling = Image.Resampling.BILINEAR
    if fit == "crop":
        image = ImageOps.fit(image, (width, height), resampling)
    elif fit == "pad":
        image = ImageOps.pad(image, (width, height), resampling)
    else:
        image = image.resize((width, height), resampling)
    return Picture(np.asarray(image, dtype=np.uint8).reshape(image_shape), white_assumed)


def _in_bytes(opened: Image.Image, image: Image.Image, path: Path) -> tuple[Image.Image, bool]:
    """Reduces pixels of more than 8 bits to 8, since Pillow would clip larger values; says whether white was assumed.

    Raises ValueError for pixels whose value for white is unknown.

    Args:
      opened: as read from `path`; `image` is made of it.
    """
    if opened.format == "PPM" and image.mode == "I":  # Pillow has scaled it from the largest value in its header
        return _scaled(image, 65535), False
    if image.mode in ("I", "F"):
        kind = "floating-point numbers" if image.mode == "F" else "32-bit integers"
        raise ValueError(f"its pixels are {kind}, which need not end at white; save it with 8 or 16 bits")
    tags = getattr(opened, "tag_v2", {})  # of a TIFF
    depth, significant = _bits_of_png(path) if opened.format == "PNG" else (tags.get(BITS_PER_SAMPLE, (8,))[0], None)
    assumed = depth == 16 and significant is None
    if not image.mode.startswith("I;16"):
        if significant and image.convert("L").getextrema()[1] < 2 ** (significant - 8) < 256:
            raise ValueError(f"its colours use only the lower {significant} of 16 bits; save it with 8 bits")
        return image, assumed
    pixels = np.asarray(image, dtype=np.uint16)
    if significant and pixels.max() < 2**significant and (pixels % 2 ** (16 - significant)).any():
        # Values of fewer significant bits should be scaled to 16 (PNG, third edition, 12.4); many programs do not.
        depth = significant
    return _scaled(image, 2**depth - 1, tags.get(PHOTOMETRIC) == WHITE_IS_ZERO), assumed


def _scaled(image: Image.Image, white: int, inverted: bool = False) -> Image.Image:
    values = np.minimum(np.asarray(image, dtype=np.uint32), white)
    values = white - values if inverted else values
    return Image.fromarray((values * 256 // (white + 1)).astype(np.uint8))


def _bits_of_png(path: Path) -> tuple[int, int | None]:
    """Bits of a channel in a PNG, and how many of them are significant; None if it does not say so (chunk sBIT)."""
    with open(path, "rb") as file:
        depth = file.read(25)[24]
        file.seek(33)
        while len(header := file.read(8)) == 8 and header[4:] != b"IDAT":
            length = int.from_bytes(header[:4])
            if header[4:] == b"sBIT":
                bits = file.read(1)[0]
                return depth, bits if 8 <= bits <= depth else None
            file.seek(length + 4, 1)
    return depth, None
