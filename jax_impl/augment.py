"""Augmentation in JAX: see common/spec/augmentation.py."""

import jax
import jax.numpy as jnp

from common.spec.augmentation import Augmentation
from common.spec.randomness import STREAM_AUGMENTATION
from jax_impl.randomness import philox


class Augment:
    """Augments the images of a batch; each image has its own random numbers."""

    def __init__(self, augmentation: Augmentation, visits: jax.Array) -> None:
        """`visits`: int64 (n,)."""
        self.augmentation = augmentation
        words = philox(augmentation.seed, visits, 0, STREAM_AUGMENTATION)
        self.vertical, self.horizontal, self.mirror, self.place = (word[:, None] for word in words)

    def crop_and_flip(self, images: jax.Array) -> jax.Array:
        """uint8 (n, H, W, C) to the same shape."""
        (height, width), pad = images.shape[1:3], self.augmentation.padding
        # A word times n, shifted right by 32 bits, is an integer from 0 to n - 1.
        rows = jnp.arange(height) + (self.vertical * (2 * pad + 1) >> 32)
        columns = jnp.arange(width)
        if self.augmentation.flips:
            columns = jnp.where(self.mirror >> 31 == 1, columns[::-1], columns)
        columns = columns + (self.horizontal * (2 * pad + 1) >> 32)
        padded = jnp.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        return jax.vmap(lambda image, row, column: image[row[:, None], column])(padded, rows, columns)

    def cut_out(self, images: jax.Array) -> jax.Array:
        """Normalised images (n, H, W, C) to the same shape."""
        if not self.augmentation.cutout:
            return images
        rows = self.inside(images.shape[1], self.place & 0xFFFF)
        columns = self.inside(images.shape[2], self.place >> 16)
        return jnp.where((rows[:, :, None] & columns[:, None, :])[..., None], 0, images)

    def inside(self, length: int, centre: jax.Array) -> jax.Array:
        """bool (n, length): which rows or columns are in the square; `centre`: (n, 1), in units of length / 2^16."""
        offset = jnp.arange(length) - (centre * length >> 16) + self.augmentation.cutout // 2
        return (offset >= 0) & (offset < self.augmentation.cutout)
