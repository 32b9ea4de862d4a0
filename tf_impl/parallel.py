"""How replicas work together in TensorFlow: what `--strategy` names."""

import sys

import tensorflow as tf

from common.spec.device_options import Strategy
from common.spec.options import TrainConfig

# Of several devices, what "auto" stands for first. Pipelines: tf_impl/pipeline.py.
STRATEGIES: tuple[Strategy, ...] = ("mirrored", "pipeline")


def make_strategy(config: TrainConfig) -> tf.distribute.Strategy:
    """A MirroredStrategy, or the default one; on the CPU devices are logical ones, which split its threads.

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
    tf.config.set_visible_devices(tf.config.list_physical_devices("GPU")[: config.num_gpus], "GPU")
    on_cpu = config.stages_on.count("cpu")
    if on_cpu > 1:
        logical = [tf.config.LogicalDeviceConfiguration()] * on_cpu
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], logical)
    if config.strategy != "mirrored":
        return tf.distribute.get_strategy()  # the default one: there is nothing to distribute
    operations = tf.distribute.ReductionToOneDevice() if on_cpu else None
    return tf.distribute.MirroredStrategy(device_names(config), cross_device_ops=operations)


def device_names(config: TrainConfig) -> list[str]:
    """TensorFlow's: `CPU:0`, `CPU:1`; of a pipeline maybe `CPU:0`, `GPU:0`."""
    kinds = config.stages_on
    return [f"{kind.upper()}:{kinds[:index].count(kind)}" for index, kind in enumerate(kinds)]
