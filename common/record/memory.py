"""One line for the user where a device has no memory left."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from common.platform.errors import OutOfMemoryError
from common.record.recorder import Recorder
from common.resolve import describe_devices


@contextmanager
def memory_told(recorder: Recorder, ran_out: Callable[[Exception], bool]) -> Iterator[None]:
    """Turns what a framework says of memory into a line that names batch size and device.

    Args:
      recorder: of the run.
      ran_out: whether this is what an exception says.

    Raises:
      OutOfMemoryError: instead of such an exception.
    """
    try:
        yield
    except Exception as error:
        if not ran_out(error):
            raise
        config, device = recorder.config, describe_devices(recorder.config, recorder.device_name)
        raise OutOfMemoryError(
            f"out of memory with --batch-size {config.batch_size} (in evaluation {config.eval_batch_size}) on"
            f" {device}; smaller batches need less, and with --accumulate-grad-batches"
            " they make the same step"
        ) from None
