"""The speed of matrix products: the loop around each framework's own product."""

import time
from collections.abc import Callable

from common.platform.errors import UserError
from common.platform.processor import HALF_PRECISIONS, half_precision_crashes, processor_note, try_out
from common.spec.options import TrainConfig

SIZES = {"cpu": 1024, "gpu": 8192}
REPEATS, ENOUGH_SECONDS = 10, 2.0  # where a precision is emulated, one product takes seconds


def flops_per_second(size: int, multiply: Callable[[], object], synchronize: Callable[[], None]) -> float:
    """Operations per second of the fastest of several products of two matrices, (size, size) each.

    `synchronize` waits for the device.
    """
    seconds: list[float] = []
    while len(seconds) < REPEATS and sum(seconds) < ENOUGH_SECONDS:
        synchronize()
        start = time.perf_counter()
        multiply()
        synchronize()
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds)


def prepare_half_precision(config: TrainConfig, package: str, probe_module: str) -> None:
    """Tries out half precision before the first product on the CPU, as before a run.

    Raises:
      UserError: the processor crashes in half precision.
    """
    if config.accelerator == "cpu":
        try_out(HALF_PRECISIONS, package, probe_module)
        if half_precision_crashes():
            raise UserError(f"the products cannot be measured here: {processor_note()}")
