"""Random numbers that are the same in every implementation.

They come from the raw stream of PCG64, which NumPy promises never to change (NEP 19: bit generators are stable across
versions, distributions are not), so that implementations in different environments still see the same order.
"""

import numpy as np
from numpy.typing import NDArray

# Domain separation: one seed feeds several independent streams.
STREAM_ORDER, STREAM_WEIGHTS, STREAM_SYNTHETIC, STREAM_SPLIT = 0, 1, 2, 3


def random_bits(count: int, *key: int) -> NDArray[np.uint64]:
    """uint64 (count,): the raw PCG64 stream that belongs to `key`, non-negative integers."""
    raw = np.random.PCG64(np.random.SeedSequence(key)).random_raw(count)
    return np.asarray(raw, dtype=np.uint64)
