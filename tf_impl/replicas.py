"""Devices in TensorFlow: one process, one strategy, a replica on each device."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.platform.launch import Launch
from common.spec.options import TrainConfig
from tf_impl.parallel import device_names

SUM = tf.distribute.ReduceOp.SUM


def sum_over_replicas(values: tf.Tensor) -> tf.Tensor:
    """The sum of every replica's tensor, as a part of a network; outside of replicas, the tensor itself."""
    replica = tf.distribute.get_replica_context()
    return replica.all_reduce(SUM, values) if replica else values


def share_statistics(network: keras.Model, strategy: tf.distribute.Strategy) -> None:
    """Gives every replica, in all processes, the running statistics of the first replica."""
    is_first = Launch.read().is_first
    for variable in network.non_trainable_variables:
        value = variable.numpy()
        variable.assign(sum_over_processes(strategy, value if is_first else np.zeros_like(value)))


def has_several_processes(strategy: tf.distribute.Strategy | None) -> bool:
    """Whether there are several processes, each with its part of the replicas."""
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def sum_over_processes(strategy: tf.distribute.Strategy, array: NDArray[Any]) -> NDArray[Any]:
    """The sum of every process's array. All processes must call it."""
    if not has_several_processes(strategy):
        return array
    own = len(strategy.extended.worker_devices)  # replicas of this process

    def share(context: tf.distribute.experimental.ValueContext) -> tf.Tensor:
        # Only the first replica's copy counts: dividing the sum of the copies would not keep whole numbers whole.
        is_first = context.replica_id_in_sync_group % own == 0
        return tf.constant(array if is_first else np.zeros_like(array))

    shares = strategy.experimental_distribute_values_from_function(share)
    return strategy.reduce(SUM, shares, axis=None).numpy()


def device_peak_memory_bytes(config: TrainConfig, strategy: tf.distribute.Strategy) -> int | None:
    """Peak memory that TensorFlow's allocator held on the GPUs, summed; None on the CPU."""
    if config.accelerator == "cpu":
        return None
    own = [tf.config.experimental.get_memory_info(name)["peak"] for name in device_names(config)]
    return int(sum_over_processes(strategy, np.array(sum(own))))
