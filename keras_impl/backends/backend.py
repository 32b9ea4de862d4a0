"""Keras on another backend than TensorFlow, as `common.backend` sees it: one process, one device, and fit."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from common.backend import Backend
from common.experiment import Experiment
from common.platform.errors import UserError
from common.platform.launch import Launch
from common.record.recorder import Recorder
from common.resolve import Settings, resolve_devices, resolve_settings
from common.spec.options import TrainConfig
from keras_impl.backends.inspection import predict
from keras_impl.backends.parts import make_parts
from keras_impl.backends.train import train
from tf_impl.networks import DTYPES, make_network
from tf_impl.weights import load_weights


class KerasBackend(Backend):
    """What the two have in common.

    Attributes:
      cuda: the version of CUDA that the backend is built for; None: it is built without.
    """

    cuda: str | None = None

    @abstractmethod
    def num_gpus(self) -> int:
        """Number of GPUs that the backend can use on this node."""

    @abstractmethod
    def setup(self, config: TrainConfig) -> None:
        """Sets devices, threads and float formats of this process."""

    def resolve(self, config: TrainConfig) -> TrainConfig:
        for option, asked in (
            ("--mode tuned", config.mode == "tuned"),
            ("--accumulate-grad-batches", config.accumulate_grad_batches > 1),
            ("--precision 16-mixed", config.precision == "16-mixed"),
            ("--save-first-batch true", config.save_first_batch),
        ):
            if asked:
                raise UserError(f"{option}: {self.title} does not have it; keras_impl or another framework may")
        num_gpus = 0 if config.accelerator == "cpu" else self.num_gpus()
        config = resolve_devices(config, self.title, num_gpus, Launch.read(), (), self.cuda)
        return resolve_settings(config, Settings())

    def join(self, experiment: Experiment, launch: Launch) -> None:
        self.setup(experiment.config)
        keras.config.set_floatx(DTYPES[experiment.config.precision])  # fit cuts arrays to it, whatever the policy

    def train(self, experiment: Experiment, recorder: Recorder) -> None:
        train(experiment, make_parts(experiment), recorder)

    def fetch(
        self, steps: list[tuple[Any, Any]], numbers: list[float]
    ) -> tuple[Sequence[tuple[float, float]], list[float]]:
        """Keras has fetched the numbers already, in the only process."""
        return steps, numbers

    def synchronize(self) -> None:
        """Nothing to wait for: after each step, the callback has fetched its loss."""

    def classify(self, experiment: Experiment) -> NDArray[np.floating]:
        self.join(experiment, Launch.read())
        network = make_network(experiment.network, experiment.config)
        load_weights(network, experiment.initial_weights)
        return predict(experiment, network)
