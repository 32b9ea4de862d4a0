"""Definition of the augmentation of training images; each framework computes it natively.

All random numbers are drawn once for each example and epoch (common/spec/randomness.py).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.platform.errors import UserError
from common.spec.options import TrainConfig
from common.spec.randomness import STREAM_AUGMENTATION, Integers, philox, positions


class AugmentationDraws(NamedTuple):
    """What happens to each of n images: int64 (n,), and bool (n,) for `flipped`.

    Attributes:
      top, left: where the crop begins, in the padded image.
      flipped: whether the crop is mirrored.
      cutout_top, cutout_left: where the square begins that is cut out, which may be outside of the image.
    """

    top: Integers
    left: Integers
    flipped: NDArray[np.bool_]
    cutout_top: Integers
    cutout_left: Integers


@dataclass(frozen=True)
class Augmentation:
    """Crop, flip and cutout, in this order.

    Attributes:
      padding: number of black pixels added on each side of an image, which is then cropped at random to its own size.
      flips: whether each image is mirrored left to right with probability 1/2.
      cutout: side of a square at a random place that is set to the mean colour; the square may extend over the edge
        (DeVries and Taylor, 2017).
    """

    seed: int
    padding: int
    flips: bool
    cutout: int

    @classmethod
    def of(cls, config: TrainConfig, image_shape: tuple[int, int, int]) -> "Augmentation | None":
        """None if nothing is to be changed. Raises UserError for a padding or cutout larger than the images."""
        for name in ("random_crop", "cutout"):
            value, most = getattr(config, name), min(image_shape[:2])
            if value > most:
                option = "--" + name.replace("_", "-")
                raise UserError(f"{option} {value}: images are {image_shape[0]} x {image_shape[1]}; at most {most}")
        if not (config.random_crop or config.horizontal_flip or config.cutout):
            return None
        return cls(config.seed, config.random_crop, config.horizontal_flip, config.cutout)

    def draws(self, visits: Integers, image_shape: tuple[int, ...]) -> AugmentationDraws:
        """What happens to these images; `image_shape`: (H, W, C)."""
        height, width = image_shape[:2]
        vertical, horizontal, mirror, place = philox(self.seed, positions(visits), visits >> 32, 0, STREAM_AUGMENTATION)
        side = 2 * self.padding + 1
        # The upper 32 bits of a word times n are a random integer from 0 to n - 1. The lower half of the fourth word
        # gives the row of the square's centre, the upper half gives the column.
        return AugmentationDraws(
            top=vertical * side >> 32,
            left=horizontal * side >> 32,
            flipped=(mirror >> 31 == 1) & self.flips,
            cutout_top=((place & 0xFFFF) * height >> 16) - self.cutout // 2,
            cutout_left=((place >> 16) * width >> 16) - self.cutout // 2,
        )

    def __call__(
        self, images: NDArray[np.uint8], visits: Integers, shift: NDArray[np.float32], scale: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """Changes and normalises images, uint8 (n, H, W, C); returns float64 (n, H, W, C)."""
        (height, width), pad = images.shape[1:3], self.padding
        draws = self.draws(visits, images.shape[1:])
        padded = np.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        rows = np.arange(height) + draws.top[:, None]
        columns = np.where(draws.flipped[:, None], np.arange(width)[::-1], np.arange(width)) + draws.left[:, None]
        changed = padded[np.arange(len(images))[:, None, None], rows[:, :, None], columns[:, None, :]]
        normalised: NDArray[np.float64] = (changed.astype(np.float64) - shift) * scale
        if self.cutout:
            inside = [
                (np.arange(length) >= first[:, None]) & (np.arange(length) < first[:, None] + self.cutout)
                for length, first in ((height, draws.cutout_top), (width, draws.cutout_left))
            ]
            normalised[inside[0][:, :, None] & inside[1][:, None, :]] = 0
        return normalised
