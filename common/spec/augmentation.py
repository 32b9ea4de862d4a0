"""Definition of the augmentation of training images; each framework computes it natively.

All random numbers are drawn once for each example and epoch (common/spec/randomness.py).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

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
    """

    top: Integers
    left: Integers
    flipped: NDArray[np.bool_]


@dataclass(frozen=True)
class Augmentation:
    """Crop and flip, in this order.

    Attributes:
      padding: number of black pixels added on each side of an image, which is then cropped at random to its own size.
      flips: whether each image is mirrored left to right with probability 1/2.
    """

    seed: int
    padding: int
    flips: bool

    @classmethod
    def of(cls, config: TrainConfig, image_shape: tuple[int, int, int]) -> "Augmentation | None":
        """None if nothing is to be changed. Raises UserError for a padding larger than the images."""
        padding, most = config.random_crop, min(image_shape[:2])
        if padding > most:
            shown = f"{image_shape[0]} x {image_shape[1]}"
            raise UserError(f"--random-crop {padding}: images are {shown}; at most {most}")
        if not (padding or config.horizontal_flip):
            return None
        return cls(config.seed, padding, config.horizontal_flip)

    def draws(self, visits: Integers) -> AugmentationDraws:
        """What happens to these images."""
        vertical, horizontal, mirror, _ = philox(self.seed, positions(visits), visits >> 32, 0, STREAM_AUGMENTATION)
        side = 2 * self.padding + 1
        # The upper 32 bits of a word times n are a random integer from 0 to n - 1.
        return AugmentationDraws(
            top=vertical * side >> 32,
            left=horizontal * side >> 32,
            flipped=(mirror >> 31 == 1) & self.flips,
        )

    def __call__(
        self, images: NDArray[Any], visits: Integers, shift: NDArray[np.float32], scale: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """Changes and normalises images (n, H, W, C); returns float64 (n, H, W, C)."""
        (height, width), pad = images.shape[1:3], self.padding
        draws = self.draws(visits)
        padded = np.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        rows = np.arange(height) + draws.top[:, None]
        columns = np.where(draws.flipped[:, None], np.arange(width)[::-1], np.arange(width)) + draws.left[:, None]
        changed = padded[np.arange(len(images))[:, None, None], rows[:, :, None], columns[:, None, :]]
        normalised: NDArray[np.float64] = (changed.astype(np.float64) - shift) * scale
        return normalised
