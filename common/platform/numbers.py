"""Numbers that are the same in every implementation: rounded to float32, and random bits.

Random bits are taken from the raw stream of PCG64. NumPy promises never to change this stream (NEP 19: bit generators
are stable across versions, distributions are not). So implementations in different environments use the same order of
examples.
"""

import numpy as np
from numpy.typing import NDArray

# Domain separation: one seed feeds several independent streams.
STREAM_ORDER, STREAM_WEIGHTS, STREAM_SYNTHETIC, STREAM_SPLIT = 0, 1, 2, 3


def float32(value: float) -> float:
    """The nearest float32, as a Python float: a number that every framework represents exactly."""
    return float(np.float32(value))


def random_bits(count: int, *key: int) -> NDArray[np.uint64]:
    """uint64 (count,): the raw PCG64 stream that belongs to `key`, non-negative integers."""
    raw = np.random.PCG64(np.random.SeedSequence(key)).random_raw(count)
    return np.asarray(raw, dtype=np.uint64)
