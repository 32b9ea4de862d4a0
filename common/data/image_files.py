"""Reads image files of any usual format as pictures of 8 bits."""

import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from common.platform.errors import UserError
from common.platform.files import file_error_reason
from common.spec.options import ImageShape

warnings.filterwarnings("ignore", module="PIL")  # about damaged metadata, and large images


def read_image(path: Path, image_shape: ImageShape) -> tuple[NDArray[np.uint8], float]:
    """An image, uint8 `image_shape`, upright, and cut at its edges to the ratio of the shape's sides; the share cut.

    What is transparent becomes white, as viewers show it; of 16 bits, the upper 8 count.

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
        raise ValueError("its pixels have 32 bits, which need not end at white; save it with 8 bits")
    has_16 = image.mode.startswith("I;16")
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)) if has_16 else image


def _on_white(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image
    coloured = image.convert("RGBA")
    background = Image.new("RGB", image.size, "white")
    background.paste(coloured, mask=coloured)
    return background
