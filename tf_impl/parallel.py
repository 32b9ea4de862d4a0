"""How replicas work together in TensorFlow: the strategies that `--strategy` names."""

import json
import os
import sys

import tensorflow as tf

from common.platform.launch import Launch
from common.platform.rendezvous import addresses
from common.spec.options import Accelerator, Strategy, TrainConfig

# For several devices, "auto" means the first of these. Pipelines: tf_impl/pipeline.py.
STRATEGIES: tuple[Strategy, ...] = ("mirrored", "multi_worker_mirrored", "pipeline")


def make_strategy(config: TrainConfig) -> tf.distribute.Strategy:
    """The strategy for this process's devices, or the default one. On the CPU, logical devices share the threads.

    Must run before TensorFlow uses a device: the number of devices and threads can't change afterwards.
    """
    launch, kinds = Launch.read(), own_devices(config)
    # AutoGraph imports files that it makes in every run and then removes. Their bytecode would stay behind.
    sys.dont_write_bytecode = True
    # As in the other implementations, TF32 is not the default: it keeps 10 of the mantissa's 23 bits.
    tf.config.experimental.enable_tensor_float_32_execution(config.tf32)
    # All logical devices use one thread pool, so the number of threads is multiplied by the number of devices.
    tf.config.threading.set_intra_op_parallelism_threads(config.threads_per_device * len(kinds))
    tf.config.threading.set_inter_op_parallelism_threads(len(kinds))
    # Other GPUs are hidden: TensorFlow allocates the memory of every GPU that it sees.
    num_gpus = kinds.count("gpu")
    first_gpu = launch.local_rank * num_gpus
    tf.config.set_visible_devices(tf.config.list_physical_devices("GPU")[first_gpu : first_gpu + num_gpus], "GPU")
    on_cpu = kinds.count("cpu")
    if on_cpu > 1:
        logical = [tf.config.LogicalDeviceConfiguration()] * on_cpu
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], logical)
    if config.strategy == "mirrored":
        operations = tf.distribute.ReductionToOneDevice() if on_cpu else None
        return tf.distribute.MirroredStrategy(device_names(config), cross_device_ops=operations)
    if config.strategy == "multi_worker_mirrored":
        if launch.started_by != "TF_CONFIG":  # the variable with the addresses of all processes
            workers = [f"{host}:{port}" for host, port in addresses(launch)]
            task = {"type": "worker", "index": launch.rank}
            os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
        return tf.distribute.MultiWorkerMirroredStrategy()
    return tf.distribute.get_strategy()  # the default one: there is nothing to distribute


def own_devices(config: TrainConfig) -> tuple[Accelerator, ...]:
    """The kind of each device of this process. Each process on a node has an equal share of the node's devices."""
    processes = Launch.read().local_world_size or 1
    return config.stages_on[: len(config.stages_on) // processes]


def device_names(config: TrainConfig) -> list[str]:
    """TensorFlow's names of this process's devices: `CPU:0`, `CPU:1`; for a pipeline perhaps `CPU:0`, `GPU:0`."""
    kinds = own_devices(config)
    return [f"{kind.upper()}:{kinds[:index].count(kind)}" for index, kind in enumerate(kinds)]
