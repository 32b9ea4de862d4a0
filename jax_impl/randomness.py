"""The random numbers of dropout and augmentation in JAX: see common/spec/randomness.py."""

import jax
import jax.numpy as jnp

from common.spec.randomness import PHILOX_MULTIPLIERS, WORD_MASK, round_keys


def philox(seed: int, visits: jax.Array, number: jax.Array | int, stream: int) -> tuple[jax.Array, ...]:
    """Four random words, int64 from 0 to 2^32 - 1, for each visit and number, whose shapes are broadcast.

    Used instead of jax.random, whose numbers depend on the shape that is drawn at once.
    """
    c0, c1, c2, c3 = visits & WORD_MASK, visits >> 32, jnp.asarray(number, jnp.int64), jnp.asarray(stream, jnp.int64)
    for key0, key1 in round_keys(seed):
        # Products of 64 bits may be negative as int64, so only 32 bits are kept after the shift.
        product0, product1 = c0 * PHILOX_MULTIPLIERS[0], c2 * PHILOX_MULTIPLIERS[1]
        c0, c2 = ((product1 >> 32) ^ c1 ^ key0) & WORD_MASK, ((product0 >> 32) ^ c3 ^ key1) & WORD_MASK
        c1, c3 = product1 & WORD_MASK, product0 & WORD_MASK
    return c0, c1, c2, c3
