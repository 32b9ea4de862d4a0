"""The optimizer in Keras: tf_impl's, which is a Keras optimizer."""

from contextlib import ExitStack
from typing import Any

import keras

from tf_impl.optimizer import Optimizer, average_weights


class Averaging(keras.callbacks.Callback):
    """Evaluates the moving average of the weights.

    Used instead of SwapEMAWeights, which swaps weights and average by adding them up. That rounds both in every
    evaluation.
    """

    def __init__(self, network: keras.Model, optimizer: Optimizer) -> None:
        super().__init__()
        self.network, self.optimizer, self.evaluation = network, optimizer, ExitStack()

    def on_test_begin(self, logs: Any = None) -> None:
        self.evaluation.enter_context(average_weights(self.network, self.optimizer))

    def on_test_end(self, logs: Any = None) -> None:
        self.evaluation.close()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.weights = self.network.get_weights() if self.optimizer.use_ema else []

    def on_train_end(self, logs: Any = None) -> None:
        # fit has replaced the weights by their average, as if no other call of fit could follow.
        if self.weights:
            self.network.set_weights(self.weights)
