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
        self.vertical, self.horizontal, self.mirror = (word[:, None] for word in words[:3])

    def __call__(self, images: jax.Array) -> jax.Array:
        """Images (n, H, W, C) to the same shape."""
        (height, width), pad = images.shape[1:3], self.augmentation.padding
        # A word times n, shifted right by 32 bits, is an integer from 0 to n - 1.
        rows = jnp.arange(height) + (self.vertical * (2 * pad + 1) >> 32)
        columns = jnp.arange(width)
        if self.augmentation.flips:
            columns = jnp.where(self.mirror >> 31 == 1, columns[::-1], columns)
        columns = columns + (self.horizontal * (2 * pad + 1) >> 32)
        padded = jnp.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        return jax.vmap(lambda image, row, column: image[row[:, None], column])(padded, rows, columns)
