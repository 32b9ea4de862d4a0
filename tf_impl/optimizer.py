"""PyTorch's SGD in Keras: the shared update rule, see common.optim. And its scaling of the loss, for float16."""

from typing import Any

import keras
import tensorflow as tf

from common.config import TrainConfig
from common.optim import LossScaling, UpdateRule


class LearningRates(keras.optimizers.schedules.LearningRateSchedule):
    """The rate of every step, out of the shared table."""

    def __init__(self, rule: UpdateRule) -> None:
        self.rates = tf.constant(rule.learning_rates)

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        return tf.gather(self.rates, tf.cast(step, tf.int32))


class LossScale:
    """torch.amp.GradScaler's rule, see common.optim; made in the strategy's scope.

    Not Keras's LossScaleOptimizer: it looks at the gradients of the first replica alone.
    """

    def __init__(self, rule: LossScaling | None) -> None:
        """`rule`: None where nothing is scaled."""
        self.rule = rule
        if rule:
            first = {"trainable": False, "aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA}
            self.scale = tf.Variable(rule.initial, dtype=tf.float32, **first)
            self.good_steps = tf.Variable(0, dtype=tf.int32, **first)
            self.skipped = tf.Variable(0, dtype=tf.int64, **first)

    def scaled(self, loss: tf.Tensor) -> tf.Tensor:
        return loss * self.scale if self.rule else loss

    def unscaled(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """This replica's gradients without the scale; all of them NaN if any replica has one that isn't finite."""
        if not self.rule:
            return gradients
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients])
        overflows = tf.distribute.get_replica_context().all_reduce(
            tf.distribute.ReduceOp.SUM, tf.cast(~finite, tf.int32)
        )
        skip = overflows > 0
        factor = tf.where(skip, float("nan"), 1 / self.scale)
        grown = tf.logical_and(~skip, self.good_steps + 1 == self.rule.growth_interval)
        change = tf.where(skip, self.rule.backoff, tf.where(grown, self.rule.growth, 1.0))
        self.scale.assign(self.scale * change)
        self.good_steps.assign(tf.where(skip | grown, 0, self.good_steps + 1))
        self.skipped.assign_add(tf.cast(skip, tf.int64))
        return [gradient * factor for gradient in gradients]

    @property
    def skipped_steps(self) -> int | None:
        return self.skipped.numpy().item() if self.rule else None


class SGD(keras.optimizers.SGD):
    """Keras's own SGD keeps the learning rate inside the velocity and decays weights apart from it."""

    def __init__(self, rule: UpdateRule, scaling: LossScaling | None) -> None:
        super().__init__(LearningRates(rule), momentum=rule.momentum, nesterov=rule.nesterov)
        self.l2 = rule.weight_decay
        self.loss_scale = LossScale(scaling)

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        rate, momentum, l2 = (tf.cast(value, variable.dtype) for value in (learning_rate, self.momentum, self.l2))
        taken = tf.math.is_finite(gradient) if self.loss_scale.rule else True
        if self.l2:
            gradient = gradient + l2 * variable
        if self.momentum:
            velocity = self.momentums[self._get_variable_index(variable)]
            self.assign(velocity, where(taken, momentum * velocity + gradient, velocity))
            gradient = gradient + momentum * velocity if self.nesterov else velocity
        self.assign_sub(variable, where(taken, rate * gradient, 0.0))


def where(taken: tf.Tensor | bool, new: tf.Tensor, otherwise: Any) -> tf.Tensor:
    """tf.where, and nothing at all where every step is taken."""
    return new if taken is True else tf.where(taken, new, otherwise)


def make_optimizer(model: keras.Model, rule: UpdateRule, config: TrainConfig) -> SGD:
    optimizer = SGD(rule, LossScaling() if config.precision == "16-mixed" else None)
    optimizer.build(model.trainable_variables)  # in the strategy's scope, where the caller is
    return optimizer
