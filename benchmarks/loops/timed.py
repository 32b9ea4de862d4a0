"""Times functions, for programs that run nothing else."""

import statistics
import time
from collections.abc import Callable
from typing import Any

ROUNDS, REPEATS = 7, 50  # more than a pipeline prepares ahead


def milliseconds(ways: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Name -> mean time of a call: the median over rounds, without the first. In a round all functions take turns."""
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            for _ in range(REPEATS):
                way()
            samples[name].append((time.perf_counter() - start) / REPEATS * 1000)
    return {name: statistics.median(times[1:]) for name, times in samples.items()}
