"""The random numbers of dropout and augmentation in Keras, on any backend: see common/spec/randomness.py."""

from typing import Any

import keras
from keras import ops

from common.spec.randomness import PHILOX_MULTIPLIERS, WORD_MASK, round_keys


def philox(seed: int, visits: Any, number: Any, stream: int) -> tuple[Any, Any, Any, Any]:
    """Four random words, int64 from 0 to 2^32 - 1, for each visit and number, whose shapes are broadcast."""
    number, stream = (ops.convert_to_tensor(value, "int64") for value in (number, stream))
    c0, c1, c2, c3 = visits & WORD_MASK, shifted_right(visits), number, stream
    for key0, key1 in round_keys(seed):
        # Products of 64 bits may be negative as int64, so only 32 bits are kept after the shift.
        product0, product1 = c0 * PHILOX_MULTIPLIERS[0], c2 * PHILOX_MULTIPLIERS[1]
        c0, c2 = (shifted_right(product1) ^ c1 ^ key0) & WORD_MASK, (shifted_right(product0) ^ c3 ^ key1) & WORD_MASK
        c1, c3 = product1 & WORD_MASK, product0 & WORD_MASK
    return c0, c1, c2, c3


def shifted_right(values: Any, bits: int = 32) -> Any:
    """`values` shifted right by `bits`; TensorFlow has no operator for it, and elsewhere Keras shifts 32 bits alone."""
    if keras.backend.backend() == "tensorflow":
        return ops.right_shift(values, ops.convert_to_tensor(bits, "int64"))
    return values >> bits
