"""Augmentation in TensorFlow: see common/spec/augmentation.py."""

import tensorflow as tf

from common.spec.augmentation import Augmentation
from common.spec.randomness import STREAM_AUGMENTATION
from tf_impl.randomness import high, philox


class Augment:
    """Augments the images of a shard; each image has its own random numbers.

    Used instead of Keras's layers, whose random numbers depend on all earlier ones.
    """

    def __init__(self, augmentation: Augmentation, visits: tf.Tensor) -> None:
        """`visits`: int64 (n,)."""
        self.augmentation = augmentation
        words = philox(augmentation.seed, visits, 0, STREAM_AUGMENTATION)
        self.vertical, self.horizontal, self.mirror = (word[:, None] for word in words[:3])

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        """Images (n, H, W, C) to the same shape."""
        (height, width), pad = images.shape[1:3], self.augmentation.padding
        # A word times n, shifted right by 32 bits, is an integer from 0 to n - 1.
        rows = tf.range(height, dtype=tf.int64) + high(self.vertical * (2 * pad + 1))
        columns = tf.range(width, dtype=tf.int64)
        if self.augmentation.flips:
            columns = tf.where(high(self.mirror, 31) == 1, columns[::-1], columns)
        columns = columns + high(self.horizontal * (2 * pad + 1))
        padded = tf.pad(images, [[0, 0], [pad, pad], [pad, pad], [0, 0]])
        return tf.gather(tf.gather(padded, rows, axis=1, batch_dims=1), columns, axis=2, batch_dims=1)
