"""The random numbers of dropout and augmentation in TensorFlow: see common/spec/randomness.py."""

import tensorflow as tf

from common.spec.randomness import MULTIPLIERS, WORD, round_keys

Words = tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]


def philox(seed: int, visits: tf.Tensor, number: tf.Tensor | int, stream: int) -> Words:
    """Four random words, int64 from 0 to 2^32 - 1, for each visit and number, whose shapes are broadcast."""
    c0, c1, c2, c3 = visits & WORD, high(visits), tf.convert_to_tensor(number, tf.int64), tf.constant(stream, tf.int64)
    for key0, key1 in round_keys(seed):
        # Products of 64 bits may be negative as int64, so only 32 bits are kept after the shift.
        product0, product1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c2 = (high(product1) ^ c1 ^ key0) & WORD, (high(product0) ^ c3 ^ key1) & WORD
        c1, c3 = product1 & WORD, product0 & WORD
    return c0, c1, c2, c3


def high(values: tf.Tensor, bits: int = 32) -> tf.Tensor:
    """`values` shifted right by `bits`; TensorFlow has no operator for it."""
    return tf.bitwise.right_shift(values, tf.constant(bits, tf.int64))
