"""Devices in TensorFlow: one process, one strategy, a replica on each device."""

import sys

import keras
import tensorflow as tf

from common.platform.launch import Launch
from common.platform.machine import cpu_name
from common.resolve import Settings, resolve_devices, resolve_settings
from common.spec.options import TrainConfig


def setup_devices(config: TrainConfig, title: str = "TensorFlow") -> TrainConfig:
    """`config` with its devices, threads and settings resolved. Raises UserError where they are not to be had."""
    num_gpus = len(tf.config.list_physical_devices("GPU"))
    config = resolve_devices(config, title, num_gpus, Launch.read(), one_process=True)
    settings = Settings()
    if config.mode == "tuned":
        from tf_impl.tuning import tuned_settings

        settings = tuned_settings(config)
    return resolve_settings(config, settings)


def make_strategy(config: TrainConfig) -> tf.distribute.Strategy:
    """Of several devices, a MirroredStrategy; on the CPU they are logical devices, which split its threads.

    Must run before TensorFlow touches a device: their number and the threads can't change afterwards.
    """
    # AutoGraph imports files that it makes anew in every run, and removes them; their bytecode would stay behind.
    sys.dont_write_bytecode = True
    # As in the other implementations, and not by default: TF32 keeps 10 bits of 23.
    tf.config.experimental.enable_tensor_float_32_execution(config.tf32)
    # One pool serves all logical devices: so many threads for each of them.
    tf.config.threading.set_intra_op_parallelism_threads(config.threads_per_device * config.devices)
    tf.config.threading.set_inter_op_parallelism_threads(config.devices)
    # The others stay free: TensorFlow takes the memory of every GPU that it sees.
    gpus = tf.config.list_physical_devices("GPU")[: config.devices] if config.accelerator == "gpu" else []
    tf.config.set_visible_devices(gpus, "GPU")
    if config.devices == 1:
        return tf.distribute.get_strategy()  # the default one: there is nothing to distribute
    if config.accelerator == "gpu":
        return tf.distribute.MirroredStrategy([f"GPU:{index}" for index in range(config.devices)])
    logical = [tf.config.LogicalDeviceConfiguration()] * config.devices
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], logical)
    return tf.distribute.MirroredStrategy(
        [f"CPU:{index}" for index in range(config.devices)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


def share_statistics(network: keras.Model) -> None:
    """Gives every replica the first one's running statistics."""
    for variable in network.non_trainable_variables:
        variable.assign(variable.numpy())


def device_name(config: TrainConfig) -> str:
    """The processor's or the first GPU's name."""
    if config.accelerator == "cpu":
        return cpu_name()
    gpu = tf.config.list_physical_devices("GPU")[0]
    return str(tf.config.experimental.get_device_details(gpu).get("device_name", "GPU"))


def device_peak_memory_bytes(config: TrainConfig) -> int | None:
    """Peak memory that TensorFlow's allocator held on the GPUs, summed; None on the CPU."""
    if config.accelerator == "cpu":
        return None
    return sum(tf.config.experimental.get_memory_info(f"GPU:{index}")["peak"] for index in range(config.devices))


def fetch_steps(steps: list[tuple[tf.Tensor, tf.Tensor]]) -> list[tuple[float, float]]:
    """Global losses and correct answers of several steps, which the strategy has summed already."""
    losses, correct = (tf.concat([tf.reshape(one, [-1]) for one in column], 0) for column in zip(*steps, strict=True))
    return list(zip(losses.numpy().tolist(), correct.numpy().tolist(), strict=True))


def ran_out_of_memory(error: Exception) -> bool:
    """Whether an exception says that a device has no memory left."""
    return isinstance(error, tf.errors.ResourceExhaustedError | MemoryError)


def synchronize() -> None:
    """Waits for all devices."""
    tf.test.experimental.sync_devices()
