"""PyTorch's SGD in Keras: the shared rule, see common/spec/update_rule.py."""

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from common.spec.options import TrainConfig
from common.spec.update_rule import LossScaling, UpdateRule
from tf_impl.precision import LossScale


class LearningRates(keras.optimizers.schedules.LearningRateSchedule):
    """The rate of every step, out of the shared table."""

    def __init__(self, rule: UpdateRule) -> None:
        self.rates = tf.constant(rule.learning_rates)

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        return tf.gather(self.rates, tf.cast(step, tf.int32))


class SGD(keras.optimizers.SGD):
    """Instead of Keras's own rule, which keeps the rate inside the velocity and decays weights apart from it."""

    def __init__(self, rule: UpdateRule, scaling: LossScaling | None) -> None:
        """`scaling`: None where the loss is not scaled."""
        super().__init__(LearningRates(rule), momentum=rule.momentum, nesterov=rule.nesterov)
        self.l2 = rule.weight_decay
        self.loss_scale = LossScale(scaling) if scaling else None

    def build(self, variables: list[keras.Variable]) -> None:
        super().build(variables)
        if self.momentum:
            strategy = tf.distribute.get_strategy()
            # `update_step` gets one replica's copy of a variable; this finds the velocity that belongs to it. In a
            # function, since Keras would wrap a dictionary, to track what is in it.
            velocities = {
                copy.ref(): velocity
                for variable, velocity in zip(variables, self.momentums, strict=True)
                for copy in strategy.experimental_local_results(variable.value)
            }
            self.velocity_of = lambda variable: velocities[variable.ref()]

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        return loss * self.loss_scale.scale if self.loss_scale else loss

    def apply_gradients(self, grads_and_vars: Iterable[tuple[tf.Tensor, keras.Variable]]) -> Any:
        gradients, variables = zip(*grads_and_vars, strict=True)
        if self.loss_scale:
            gradients = self.loss_scale.unscaled(gradients)
        return super().apply_gradients(zip(gradients, variables, strict=True))

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        rate, momentum, l2 = (tf.cast(value, variable.dtype) for value in (learning_rate, self.momentum, self.l2))
        taken = tf.math.is_finite(gradient) if self.loss_scale else True
        if self.l2:
            gradient = gradient + l2 * variable
        if self.momentum:
            velocity = self.velocity_of(variable)
            self.assign(velocity, where(taken, momentum * velocity + gradient, velocity))
            gradient = gradient + momentum * velocity if self.nesterov else velocity
        self.assign_sub(variable, where(taken, rate * gradient, 0.0))

    @property
    def skipped_steps(self) -> int | None:
        return self.loss_scale.skipped.numpy().item() if self.loss_scale else None


def where(taken: tf.Tensor | bool, new: tf.Tensor, otherwise: Any) -> tf.Tensor:
    """tf.where, and nothing at all where every step is taken."""
    return new if taken is True else tf.where(taken, new, otherwise)


def make_optimizer(network: keras.Model, rule: UpdateRule, config: TrainConfig) -> SGD:
    optimizer = SGD(rule, LossScaling() if config.precision == "16-mixed" else None)
    optimizer.build(network.trainable_variables)  # in the strategy's scope, where the caller is
    return optimizer
