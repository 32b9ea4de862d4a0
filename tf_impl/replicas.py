"""Devices in TensorFlow: one process, one strategy, a replica on each device."""

import keras
import tensorflow as tf

from common.platform.launch import Launch
from common.platform.machine import cpu_name
from common.resolve import Settings, resolve_devices, resolve_settings
from common.spec.device_options import Strategy
from common.spec.options import TrainConfig
from tf_impl.parallel import STRATEGIES


def setup_devices(config: TrainConfig) -> TrainConfig:
    """`config` with its devices, threads and settings resolved. Raises UserError where they are not to be had."""
    return resolve(config, "TensorFlow", STRATEGIES)


def resolve(config: TrainConfig, title: str, strategies: tuple[Strategy, ...]) -> TrainConfig:
    """The same for whatever computes with TensorFlow; `title`: its name in messages."""
    num_gpus = len(tf.config.list_physical_devices("GPU"))
    config = resolve_devices(config, title, num_gpus, Launch.read(), strategies)
    settings = Settings()
    if config.mode == "tuned":
        from tf_impl.tuning import tuned_settings

        settings = tuned_settings(config)
    return resolve_settings(config, settings)


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
    return sum(tf.config.experimental.get_memory_info(f"GPU:{index}")["peak"] for index in range(config.num_gpus))


def fetch_steps(
    steps: list[tuple[tf.Tensor, tf.Tensor]], votes: list[float]
) -> tuple[list[tuple[float, float]], list[float]]:
    """Global losses and correct answers of several steps, which the strategy has summed already; and `votes`."""
    losses, correct = (tf.concat([tf.reshape(one, [-1]) for one in column], 0) for column in zip(*steps, strict=True))
    return list(zip(losses.numpy().tolist(), correct.numpy().tolist(), strict=True)), votes


def ran_out_of_memory(error: Exception) -> bool:
    """Whether an exception says that a device has no memory left."""
    return isinstance(error, tf.errors.ResourceExhaustedError | MemoryError)


def synchronize() -> None:
    """Waits for all devices."""
    tf.test.experimental.sync_devices()
