"""Random numbers that are the same in every implementation.

What NumPy alone needs, before training, is taken from the raw stream of PCG64, which NumPy promises never to change
(NEP 19: bit generators are stable across versions, distributions are not), so that implementations in different
environments still see the same order.

What a training step draws, for dropout and augmentation, each framework computes by itself with the generator Philox.
It has no state: its numbers are a function of a counter and a key, so that those of an example do not depend on the
replica, the batch or the order in which they are asked for.
"""

import numpy as np
from numpy.typing import NDArray

# Domain separation: one seed feeds several independent streams.
STREAM_ORDER, STREAM_WEIGHTS, STREAM_SYNTHETIC, STREAM_SPLIT = 0, 1, 2, 3

Integers = NDArray[np.int64]
WORD = 2**32 - 1  # 32 bits


def random_bits(count: int, *key: int) -> NDArray[np.uint64]:
    """uint64 (count,): the raw PCG64 stream that belongs to `key`, non-negative integers."""
    raw = np.random.PCG64(np.random.SeedSequence(key)).random_raw(count)
    return np.asarray(raw, dtype=np.uint64)


# --- Philox4x32-10: Salmon et al. (2011), "Parallel random numbers: as easy as 1, 2, 3" ---

ROUNDS = 10
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
KEY_STEPS = 0x9E3779B9, 0xBB67AE85


def round_keys(seed: int) -> list[tuple[int, int]]:
    """The two words of the key of each round."""
    low, high = seed & WORD, seed >> 32
    return [((low + number * KEY_STEPS[0]) & WORD, (high + number * KEY_STEPS[1]) & WORD) for number in range(ROUNDS)]


def philox(seed: int, *counter: int | Integers) -> tuple[Integers, ...]:
    """Four random words of each counter of four words; a word is an integer from 0 to 2^32 - 1.

    Args:
      counter: integers or int64 arrays, whose shapes are broadcast.
    """
    c0, c1, c2, c3 = (np.asarray(word, dtype=np.int64) for word in counter)
    for key0, key1 in round_keys(seed):
        # Of a product of 64 bits, which may count as negative, the upper word and the lower one.
        product0, product1 = (
            word.astype(np.uint64) * np.uint64(factor) for word, factor in zip((c0, c2), MULTIPLIERS, strict=True)
        )
        (high0, low0), (high1, low1) = (
            ((product >> np.uint64(32)).astype(np.int64), (product & np.uint64(WORD)).astype(np.int64))
            for product in (product0, product1)
        )
        c0, c1, c2, c3 = high1 ^ c1 ^ key0, low1, high0 ^ c3 ^ key1, low0
    return tuple(np.broadcast_arrays(c0, c1, c2, c3))


# --- Visits: what the draws of an example belong to ---

# Counters are position, epoch, number and stream. Augmentation has a stream, and each layer with dropout another one.
STREAM_AUGMENTATION, FIRST_DROPOUT = 0, 1


def visits(epoch: int, positions: Integers) -> Integers:
    """int64, shaped as `positions`: 2^32 epoch + position, which is what an epoch (from 1) makes of an example.

    Args:
      positions: where examples stand in the data set, from 0.
    """
    return (epoch << 32) + positions


def positions(visits: Integers) -> Integers:
    return visits & WORD


# --- Dropout ---

RESOLUTION = 2**16


def dropout_threshold(rate: float) -> int:
    """`rate` as a share of RESOLUTION: a value is dropped where a random number of 16 bits is below it."""
    return round(rate * RESOLUTION)


def kept(seed: int, visits: Integers, stream: int, size: int, rate: float) -> NDArray[np.bool_]:
    """bool (n, size): which values of a layer with dropout stay, in the canonical order of its output.

    With G = size / 8, rounded up, value i is decided by words of counter number i mod G: the lower half of the first
    word for i < G, its upper half up to 2 G, then the lower half of the second word, and so on.
    """
    words = philox(
        seed, positions(visits)[:, None], visits[:, None] >> 32, np.arange(-(-size // 8)), FIRST_DROPOUT + stream
    )
    halves = [half for word in words for half in (word & (RESOLUTION - 1), word >> 16)]
    return np.concatenate(halves, axis=1)[:, :size] >= dropout_threshold(rate)
