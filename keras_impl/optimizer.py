"""The optimizer in Keras: tf_impl's, which is a Keras optimizer."""

import keras

from tf_impl.optimizer import Optimizer
from tf_impl.optimizer import averaged as averaged
from tf_impl.optimizer import make_optimizer as make_optimizer


def make_averaging(optimizer: Optimizer) -> list[keras.callbacks.Callback]:
    """The callback that evaluates the moving average of the weights."""
    return [keras.callbacks.SwapEMAWeights()] if optimizer.use_ema else []
