"""Devices in Keras: fit trains in the scope of TensorFlow's strategy."""

from typing import Any

import numpy as np

from common.platform.errors import UserError
from common.spec.options import TrainConfig
from keras_impl.parallel import STRATEGIES
from tf_impl.replicas import check_shards as check_shards
from tf_impl.replicas import device_name as device_name
from tf_impl.replicas import device_peak_memory_bytes as device_peak_memory_bytes
from tf_impl.replicas import ran_out_of_memory as ran_out_of_memory
from tf_impl.replicas import resolve
from tf_impl.replicas import share_statistics as share_statistics
from tf_impl.replicas import synchronize as synchronize


def setup_devices(config: TrainConfig) -> TrainConfig:
    """`config` with its devices, threads and settings resolved. Raises UserError if they are not available."""
    if config.accumulate_grad_batches > 1:
        raise UserError(
            f"--accumulate-grad-batches {config.accumulate_grad_batches}: not in Keras's fit, whose own would leave the"
            " end of an epoch for the next one; tf_impl has it"
        )
    if config.data_on == "device":
        raise UserError("--data-on device: Keras's fit reads from a tf.data pipeline; --data-on host")
    return resolve(config.replace(data_on="host"), "Keras", STRATEGIES)


def fetch_steps(steps: list[tuple[Any, Any]], votes: list[float]) -> tuple[list[tuple[float, float]], list[float]]:
    """Losses and correct answers of each step, and `votes`, of the only process.

    Keras has fetched the numbers already. A call may have taken several steps.
    """
    return [pair for call in steps for pair in zip(*map(np.ravel, call), strict=True)], votes
