"""Devices in TensorFlow: one process, one strategy, a replica on each device."""

import functools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.experiment import Experiment
from common.platform.errors import UserError
from common.platform.launch import Launch
from common.platform.machine import cpu_name
from common.resolve import Settings, resolve_devices, resolve_settings
from common.spec.batches import shards
from common.spec.options import Strategy, TrainConfig
from tf_impl.parallel import device_names
from tf_impl.precision import POLICIES, tuned_settings

SUM = tf.distribute.ReduceOp.SUM


def resolve(config: TrainConfig, title: str, strategies: tuple[Strategy, ...]) -> TrainConfig:
    """`config` with its devices, threads and settings resolved; `title`: the framework's name in messages.

    Raises:
      UserError: they are not available.
    """
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:  # otherwise TensorFlow takes the whole GPU, and the programs that train in turns with it find none
        tf.config.experimental.set_memory_growth(gpu, True)
    config = resolve_devices(config, title, len(gpus), Launch.read(), strategies)
    return resolve_settings(config, tuned_settings(config) if config.mode == "tuned" else Settings())


def check_shards(experiment: Experiment) -> None:
    """Raises UserError if shards without examples would end a run midway. The check may initialise TensorFlow."""
    config, test_size = experiment.config, len(experiment.dataset.test_images)
    for option, size, bounds in (
        ("--batch-size", config.batch_size, replace(experiment.plan, first_step=1).shards(1, config.num_shards)),
        ("--eval-batch-size", config.eval_batch_size, shards(test_size, config.eval_batch_size, config.num_shards)),
    ):
        starts, stops, _ = bounds[-1].T
        if (starts == stops).any() and not takes_no_examples(config):
            raise UserError(
                f"{option} {size}: a last batch of {stops.max() - starts[0]} leaves some of {config.num_shards}"
                " replicas without examples, which TensorFlow's convolutions can't take on this processor; another one,"
                " or --precision 64"
            )


def takes_no_examples(config: TrainConfig) -> bool:
    """Whether convolutions accept batches without examples; TensorFlow 2.21 with oneDNN loses their channels."""
    dtype = POLICIES[config.precision].removeprefix("mixed_")

    @tf.function(input_signature=[tf.TensorSpec([None, 4, 4, 1], dtype)])
    def twice(images: tf.Tensor) -> tf.Tensor:
        for channels in (1, 3):
            images = tf.nn.conv2d(images, tf.zeros([3, 3, channels, 3], dtype), 1, "SAME")
        return images

    try:
        twice(tf.zeros([0, 4, 4, 1], dtype))
    except tf.errors.InvalidArgumentError:
        return False
    return True


def share_statistics(network: keras.Model, strategy: tf.distribute.Strategy) -> None:
    """Gives every replica, in all processes, the running statistics of the first replica."""
    is_first = Launch.read().is_first
    for variable in network.non_trainable_variables:
        value = variable.numpy()
        variable.assign(sum_over_processes(strategy, value if is_first else np.zeros_like(value)))


def has_processes(strategy: tf.distribute.Strategy | None) -> bool:
    """Whether there are several processes, each with its part of the replicas."""
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def sum_over_processes(strategy: tf.distribute.Strategy, array: NDArray[Any]) -> NDArray[Any]:
    """The sum of every process's array. All processes must call it."""
    return adder(strategy)(tf.constant(array)).numpy() if has_processes(strategy) else array


@functools.cache
def adder(strategy: tf.distribute.Strategy) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function that adds up the processes' tensors; cached, since tracing it takes longer than running it."""
    own = len(strategy.extended.worker_devices)  # replicas of this process

    @tf.function
    def total(value: tf.Tensor) -> tf.Tensor:
        # Each replica of a process has a copy of its array. Only the first replica's copy counts: dividing the sum of
        # the copies would not keep whole numbers whole.
        def share() -> tf.Tensor:
            first = tf.distribute.get_replica_context().replica_id_in_sync_group % own == 0
            return tf.where(first, value, tf.zeros_like(value))

        return strategy.reduce(SUM, strategy.run(share), axis=None)

    return total


def device_name(config: TrainConfig) -> str:
    """The processor's or the first GPU's name."""
    if config.accelerator == "cpu":
        return cpu_name()
    gpu = tf.config.list_physical_devices("GPU")[0]
    return str(tf.config.experimental.get_device_details(gpu).get("device_name", "GPU"))


def device_peak_memory_bytes(config: TrainConfig, strategy: tf.distribute.Strategy) -> int | None:
    """Peak memory that TensorFlow's allocator held on the GPUs, summed; None on the CPU."""
    if config.accelerator == "cpu":
        return None
    own = [tf.config.experimental.get_memory_info(name)["peak"] for name in device_names(config)]
    return int(sum_over_processes(strategy, np.array(sum(own))))


def wait_for_processes(strategy: tf.distribute.Strategy) -> None:
    """Returns once every process has called it."""
    # A process that has returned may end before its whole answer has arrived. It is then unavailable: nothing is lost.
    with suppress(tf.errors.UnavailableError):
        sum_over_processes(strategy, np.zeros(1))


def fetch_steps(
    steps: list[tuple[tf.Tensor, tf.Tensor]], votes: list[float], strategy: tf.distribute.Strategy | None = None
) -> tuple[list[tuple[float, float]], list[float]]:
    """Global losses and correct answers of several steps, already summed by the strategy; `votes`, summed here."""
    losses, correct = (tf.concat([tf.reshape(one, [-1]) for one in column], 0) for column in zip(*steps, strict=True))
    if votes and strategy:
        votes = sum_over_processes(strategy, np.array(votes)).tolist()
    return list(zip(losses.numpy().tolist(), correct.numpy().tolist(), strict=True)), votes


def ran_out_of_memory(error: Exception) -> bool:
    """Whether an exception says that a device has no memory left."""
    return isinstance(error, tf.errors.ResourceExhaustedError | MemoryError)


def lost_another(error: Exception) -> bool:
    """Whether an exception says that another process can't be reached any more."""
    return isinstance(error, tf.errors.UnavailableError | tf.errors.AbortedError) or (
        isinstance(error, tf.errors.OpError) and "Collective ops is aborted" in str(error)
    )


def synchronize(strategy: tf.distribute.Strategy | None = None) -> None:
    """Waits for this process's devices."""
    if not has_processes(strategy):
        tf.test.experimental.sync_devices()
        return
    for device in strategy.extended.worker_devices:  # TensorFlow's function would ask other processes' devices too
        with tf.device(device):
            tf.raw_ops.SyncDevice()
