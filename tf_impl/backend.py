"""TensorFlow, as `common.backend` sees it: one process and one strategy, with a replica on each device."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.backend import Backend
from common.experiment import Experiment
from common.platform.launch import Launch
from common.record.recorder import Recorder
from common.spec.options import TrainConfig
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
    strategy: tf.distribute.Strategy

    def resolve(self, config: TrainConfig) -> TrainConfig:
        return replicas.resolve(config, self.title, STRATEGIES)

    def join(self, experiment: Experiment, launch: Launch) -> None:
        self.strategy = make_strategy(experiment.config)
        replicas.check_shards(experiment)

    def train(self, experiment: Experiment, recorder: Recorder) -> None:
        train(experiment, make_parts(experiment, self.strategy, recorder), recorder)

    def leave(self) -> None:
        replicas.wait_for_processes(self.strategy)

    def device_name(self, config: TrainConfig) -> str:
        return replicas.device_name(config)

    def fetch(
        self, steps: list[tuple[Any, Any]], numbers: list[float]
    ) -> tuple[Sequence[tuple[float, float]], list[float]]:
        return replicas.fetch_steps(steps, numbers, self.strategy)

    def synchronize(self) -> None:
        replicas.synchronize(self.strategy)

    def ran_out_of_memory(self, error: Exception) -> bool:
        return replicas.ran_out_of_memory(error)

    def lost_another(self, error: Exception) -> bool:
        return replicas.lost_another(error)

    def classify(self, experiment: Experiment) -> NDArray[np.floating]:
        make_strategy(experiment.config)
        network = make_network(experiment.network, experiment.config)
        load_weights(network, experiment.initial_weights)
        return predict(experiment, network)


BACKEND = TensorFlow()
