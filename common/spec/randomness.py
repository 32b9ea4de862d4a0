"""Random numbers that are the same in every implementation.

Numbers that only NumPy needs, before training, are taken from the raw stream of PCG64. NumPy promises never to change
this stream (NEP 19: bit generators are stable across versions, distributions are not). So implementations in different
environments use the same order of examples.

Numbers that a training step draws, for dropout and augmentation, are computed by each framework with the generator
Philox. Philox has no state: its numbers are a function of a counter and a key. So the numbers of an example do not
depend on the replica, the batch or the order in which they are drawn.
"""

import numpy as np
from numpy.typing import NDArray

# Domain separation: one seed feeds several independent streams.
STREAM_ORDER, STREAM_WEIGHTS, STREAM_SYNTHETIC = 0, 1, 2

Integers = NDArray[np.int64]
WORD_MASK = 2**32 - 1  # 32 bits


def random_bits(count: int, *key: int) -> NDArray[np.uint64]:
    """uint64 (count,): the raw PCG64 stream that belongs to `key`, non-negative integers."""
    raw = np.random.PCG64(np.random.SeedSequence(key)).random_raw(count)
    return np.asarray(raw, dtype=np.uint64)


# --- Philox4x32-10: Salmon et al. (2011), "Parallel random numbers: as easy as 1, 2, 3" ---

PHILOX_ROUNDS = 10
PHILOX_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
KEY_STEPS = 0x9E3779B9, 0xBB67AE85


def round_keys(seed: int) -> list[tuple[int, int]]:
    """The two words of the key of each round."""
    low, high = seed & WORD_MASK, seed >> 32
    return [
        ((low + number * KEY_STEPS[0]) & WORD_MASK, (high + number * KEY_STEPS[1]) & WORD_MASK)
        for number in range(PHILOX_ROUNDS)
    ]


def philox(seed: int, *counter: int | Integers) -> tuple[Integers, ...]:
    """Four random words for each counter of four words; a word is an integer from 0 to 2^32 - 1.

    Args:
      counter: four integers or int64 arrays, whose shapes are broadcast.
    """
    c0, c1, c2, c3 = (np.asarray(word, dtype=np.int64) for word in counter)
    for key0, key1 in round_keys(seed):
        # The upper and lower words of 64-bit products, which are unsigned since they may not fit into int64.
        product0, product1 = (
            word.astype(np.uint64) * np.uint64(factor)
            for word, factor in zip((c0, c2), PHILOX_MULTIPLIERS, strict=True)
        )
        (high0, low0), (high1, low1) = (
            ((product >> np.uint64(32)).astype(np.int64), (product & np.uint64(WORD_MASK)).astype(np.int64))
            for product in (product0, product1)
        )
        c0, c1, c2, c3 = high1 ^ c1 ^ key0, low1, high0 ^ c3 ^ key1, low0
    return tuple(np.broadcast_arrays(c0, c1, c2, c3))


# --- Visits: what the draws of an example belong to ---

# A counter consists of position, epoch, number and stream. Augmentation has one stream, and each layer with dropout
# has another one.
STREAM_AUGMENTATION, FIRST_DROPOUT = 0, 1


def visits(epoch: int, positions: Integers) -> Integers:
    """int64, shaped as `positions`: 2^32 epoch + position, which identifies an example in an epoch (from 1).

    Args:
      positions: positions of examples in the data set, from 0.
    """
    return (epoch << 32) + positions


def positions(visits: Integers) -> Integers:
    return visits & WORD_MASK


# --- Dropout ---

RATE_RESOLUTION = 2**16


def dropout_threshold(rate: float) -> int:
    """`rate` times RATE_RESOLUTION: a value is dropped if its random number of 16 bits is below this threshold."""
    return round(rate * RATE_RESOLUTION)


def kept_by_dropout(seed: int, visits: Integers, stream: int, size: int, rate: float) -> NDArray[np.bool_]:
    """bool (n, size): which values of a layer with dropout are kept, in the canonical order of its output.

    Let G be size / 8, rounded up. Counter number i mod G decides on value i: with the lower half of its first word for
    i < G, with the upper half of this word for i < 2 G, then with the lower half of its second word, and so on.
    """
    words = philox(
        seed, positions(visits)[:, None], visits[:, None] >> 32, np.arange(-(-size // 8)), FIRST_DROPOUT + stream
    )
    halves = [half for word in words for half in (word & (RATE_RESOLUTION - 1), word >> 16)]
    return np.concatenate(halves, axis=1)[:, :size] >= dropout_threshold(rate)
