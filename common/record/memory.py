"""An error of one line for the user if a device has no memory left."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from common.platform.errors import OutOfMemoryError
from common.resolve import describe_devices
from common.spec.batches import EVAL_BATCH_SIZE
from common.spec.options import TrainConfig


@contextmanager
def out_of_memory_as_user_error(
    config: TrainConfig, device_name: str, ran_out: Callable[[Exception], bool], trains: bool = True
) -> Iterator[None]:
    """Replaces a framework's out-of-memory error by one line that names batch size and device.

    Args:
      config: a resolved configuration.
      ran_out: whether an exception is such an error.
      trains: True in a training; False if a trained network is only used.

    Raises:
      OutOfMemoryError: instead of such an exception.
    """
    try:
        yield
    except Exception as error:
        if not ran_out(error):
            raise
        evaluated, device = f"{EVAL_BATCH_SIZE:,} images at a time", describe_devices(config, device_name)
        if not trains:
            raise OutOfMemoryError(f"out of memory with {evaluated} on {device}; use fewer images") from None
        raise OutOfMemoryError(
            f"out of memory with --batch-size {config.batch_size} (evaluation: {evaluated}) on {device}; use a"
            " smaller --batch-size; --accumulate-grad-batches K (not in Keras) makes one step of K batches"
        ) from None
