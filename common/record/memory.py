"""One line for the user where a device has no memory left."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from common.platform.errors import OutOfMemoryError
from common.resolve import describe_devices
from common.spec.options import TrainConfig


@contextmanager
def memory_told(
    config: TrainConfig, device_name: str, ran_out: Callable[[Exception], bool], trains: bool = True
) -> Iterator[None]:
    """Turns what a framework says of memory into a line that names batch size and device.

    Args:
      config: resolved.
      ran_out: whether this is what an exception says.
      trains: or whether a trained network is only put to use.

    Raises:
      OutOfMemoryError: instead of such an exception.
    """
    try:
        yield
    except Exception as error:
        if not ran_out(error):
            raise
        evaluation, device = f"--eval-batch-size {config.eval_batch_size}", describe_devices(config, device_name)
        if not trains:
            raise OutOfMemoryError(
                f"out of memory with {evaluation} on {device}; use a smaller --eval-batch-size"
            ) from None
        raise OutOfMemoryError(
            f"out of memory with --batch-size {config.batch_size} ({evaluation}) on {device}; use a"
            " smaller --batch-size; --accumulate-grad-batches K (not in Keras) makes one step of K batches"
        ) from None
