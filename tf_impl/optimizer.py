"""PyTorch's SGD in Keras: the shared update rule, see common.optim."""

import keras
import tensorflow as tf

from common.optim import UpdateRule


class LearningRates(keras.optimizers.schedules.LearningRateSchedule):
    """The rate of every step, out of the shared table."""

    def __init__(self, rule: UpdateRule) -> None:
        self.rates = tf.constant(rule.learning_rates)

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        return tf.gather(self.rates, tf.cast(step, tf.int32))


class SGD(keras.optimizers.SGD):
    """Keras's own SGD keeps the learning rate inside the velocity and decays weights apart from it."""

    def __init__(self, rule: UpdateRule) -> None:
        super().__init__(LearningRates(rule), momentum=rule.momentum, nesterov=rule.nesterov)
        self.l2 = rule.weight_decay

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        rate, momentum, l2 = (tf.cast(value, variable.dtype) for value in (learning_rate, self.momentum, self.l2))
        if self.l2:
            gradient = gradient + l2 * variable
        if self.momentum:
            velocity = self.momentums[self._get_variable_index(variable)]
            self.assign(velocity, momentum * velocity + gradient)
            gradient = gradient + momentum * velocity if self.nesterov else velocity
        self.assign_sub(variable, rate * gradient)


def make_optimizer(model: keras.Model, rule: UpdateRule) -> SGD:
    optimizer = SGD(rule)
    optimizer.build(model.trainable_variables)  # in the strategy's scope, where the caller is
    return optimizer
