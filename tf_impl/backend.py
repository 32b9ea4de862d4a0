"""TensorFlow, as `common.backend` sees it: one process and one strategy, with a replica on each device."""

import os
import platform
from contextlib import suppress
from dataclasses import replace

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.backend import Backend
from common.experiment import Experiment
from common.platform.errors import UserError
from common.platform.launch import Launch
from common.platform.machine import cpu_name
from common.record.recorder import Recorder
from common.resolve import resolve_devices, resolve_settings, tuned_settings
from common.spec.batches import EVAL_BATCH_SIZE, shards
from common.spec.options import Strategy, TrainConfig
from tf_impl import replicas
from tf_impl.inspection import predict
from tf_impl.networks import make_network
from tf_impl.parallel import STRATEGIES, make_strategy
from tf_impl.parts import make_parts
from tf_impl.profiling import TensorFlowProfiler
from tf_impl.train import train
from tf_impl.weights import load_weights


class TensorFlow(Backend):
    name, profiler = "tf", TensorFlowProfiler()
    strategies: tuple[Strategy, ...] = STRATEGIES
    strategy: tf.distribute.Strategy

    def resolve(self, config: TrainConfig) -> TrainConfig:
        gpus = tf.config.list_physical_devices("GPU")
        # Otherwise TensorFlow takes the whole GPU, and the programs that train in turns with it find none.
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
        cuda = tf.sysconfig.get_build_info().get("cuda_version")
        config = resolve_devices(config, self.title, len(gpus), Launch.read(), self.strategies, cuda)
        return resolve_settings(config, tuned_settings(config))

    def join(self, experiment: Experiment, launch: Launch) -> None:
        self.strategy = make_strategy(experiment.config)
        check_shards(experiment)

    def train(self, experiment: Experiment, recorder: Recorder) -> None:
        train(experiment, make_parts(experiment, self.strategy, recorder), recorder)

    def leave(self) -> None:
        # A process that has returned may end before its whole answer has arrived: it is unavailable, nothing is lost.
        with suppress(tf.errors.UnavailableError):
            replicas.sum_over_processes(self.strategy, np.zeros(1))

    def device_name(self, config: TrainConfig) -> str:
        """The processor's or the first GPU's name."""
        if config.accelerator == "cpu":
            return cpu_name()
        gpu = tf.config.list_physical_devices("GPU")[0]
        return str(tf.config.experimental.get_device_details(gpu).get("device_name", "GPU"))

    def fetch(
        self, steps: list[tuple[tf.Tensor, tf.Tensor]], numbers: list[float]
    ) -> tuple[list[tuple[float, float]], list[float]]:
        """The strategy has summed the losses and correct answers already; `numbers` are summed here."""
        losses, correct = (
            tf.concat([tf.reshape(share, [-1]) for share in column], 0) for column in zip(*steps, strict=True)
        )
        if numbers:
            numbers = replicas.sum_over_processes(self.strategy, np.array(numbers)).tolist()
        return list(zip(losses.numpy().tolist(), correct.numpy().tolist(), strict=True)), numbers

    def synchronize(self) -> None:
        if not replicas.has_several_processes(self.strategy):
            tf.test.experimental.sync_devices()
            return
        # TensorFlow's function would ask other processes' devices, too.
        for device in self.strategy.extended.worker_devices:
            with tf.device(device):
                tf.raw_ops.SyncDevice()

    def ran_out_of_memory(self, error: Exception) -> bool:
        return isinstance(error, tf.errors.ResourceExhaustedError | MemoryError)

    def lost_another(self, error: Exception) -> bool:
        return isinstance(error, tf.errors.UnavailableError | tf.errors.AbortedError) or (
            isinstance(error, tf.errors.OpError) and "Collective ops is aborted" in str(error)
        )

    def classify(self, experiment: Experiment) -> NDArray[np.floating]:
        make_strategy(experiment.config)
        network = make_network(experiment.network, experiment.config)
        load_weights(network, experiment.initial_weights)
        return predict(experiment, network)


def check_shards(experiment: Experiment) -> None:
    """Raises UserError if shards without examples would end a run midway.

    On x86 processors TensorFlow 2.21 convolves with oneDNN, which loses the channels of a batch without examples; not
    in 64 bits.
    """
    config, test_size = experiment.config, len(experiment.dataset.test_images)
    has_onednn = platform.machine() in ("x86_64", "AMD64") and os.environ.get("TF_ENABLE_ONEDNN_OPTS") != "0"
    if config.accelerator == "gpu" or config.precision == "64" or not has_onednn:
        return
    for option, size, bounds in (
        ("--batch-size", config.batch_size, replace(experiment.plan, first_step=1).shards(1, config.num_shards)),
        ("--test-size", test_size, shards(test_size, EVAL_BATCH_SIZE, config.num_shards)),
    ):
        starts, stops, _ = bounds[-1].T
        if (starts == stops).any():
            raise UserError(
                f"{option} {size}: a last batch of {stops.max() - starts[0]} leaves some of {config.num_shards}"
                " replicas without examples, which TensorFlow's convolutions can't take on a CPU; another one, or"
                " --precision 64"
            )


BACKEND = TensorFlow()
