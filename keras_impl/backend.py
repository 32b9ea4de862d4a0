"""Keras on TensorFlow, as `common.backend` sees it: TensorFlow's devices, and fit in the scope of its strategy."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from common.experiment import Experiment
from common.platform.errors import UserError
from common.record.recorder import Recorder
from common.spec.options import Strategy, TrainConfig
from keras_impl.parts import make_parts
from keras_impl.train import train
from tf_impl.backend import TensorFlow

# TensorFlow's pipeline is missing here: its steps are written out.
STRATEGIES: tuple[Strategy, ...] = ("mirrored",)


class Keras(TensorFlow):
    name, strategies = "keras", STRATEGIES

    def resolve(self, config: TrainConfig) -> TrainConfig:
        if config.accumulate_grad_batches > 1:
            raise UserError(
                f"--accumulate-grad-batches {config.accumulate_grad_batches}: not in Keras's fit, whose own would leave"
                " the end of an epoch for the next one; tf_impl has it"
            )
        return super().resolve(config)

    def train(self, experiment: Experiment, recorder: Recorder) -> None:
        train(experiment, make_parts(experiment, self.strategy, recorder), recorder)

    def fetch(
        self, steps: list[tuple[Any, Any]], numbers: list[float]
    ) -> tuple[Sequence[tuple[float, float]], list[float]]:
        """Keras has fetched the numbers already, in the only process."""
        return [pair for call in steps for pair in zip(*map(np.ravel, call), strict=True)], numbers


BACKEND = Keras()
