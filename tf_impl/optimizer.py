"""The optimizer in TensorFlow: a Keras optimizer with PyTorch's update rules (rules.py)."""

from typing import Any

import keras
import tensorflow as tf

from common.spec.options import TrainConfig
from common.spec.update_rule import NORM_EPSILON, LossScaling, UpdateRule
from tf_impl.precision import LossScale, scaled_gradient
from tf_impl.rules import RuleOptimizer

Tensors = list[tf.Tensor]


class Optimizer(RuleOptimizer):
    """The same for several replicas, and with steps that the loss scaling skips."""

    def __init__(self, update_rule: UpdateRule, scaling: LossScaling | None) -> None:
        """`scaling`: None if the loss is not scaled."""
        super().__init__(update_rule)
        self.loss_scale = LossScale(scaling) if scaling else None

    def copies(self, variable: keras.Variable) -> tuple[tf.Variable, ...]:
        return tf.distribute.get_strategy().experimental_local_results(variable.value)

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        return loss * self.loss_scale.scale if self.loss_scale else loss

    def apply(self, grads: Tensors, trainable_variables: Any = None) -> None:
        super().apply(self.loss_scale.unscaled(grads) if self.loss_scale else grads, trainable_variables)

    def clipped(self, gradients: Tensors) -> Tensors:
        """This replica's gradients, scaled down if the norm of all replicas' summed gradients is too large.

        Used instead of Keras's global_clipnorm, which takes the norm of each replica's own gradients.
        """
        sums = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        norm = tf.linalg.global_norm(sums)
        factor = tf.minimum(tf.ones([], norm.dtype), self.largest_norm / (norm + NORM_EPSILON))
        return [scaled_gradient(gradient, factor) for gradient in gradients]

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        with tf.device(variable.device):  # each stage of a pipeline computes its own updates
            super().update_step(gradient, variable, learning_rate)

    @property
    def skipped_steps(self) -> int | None:
        return self.loss_scale.skipped.numpy().item() if self.loss_scale else None


def make_optimizer(network: keras.Model, update_rule: UpdateRule, config: TrainConfig) -> Optimizer:
    optimizer = Optimizer(update_rule, LossScaling() if config.precision == "16-mixed" else None)
    optimizer.build(network.trainable_variables)  # the caller is in the strategy's scope
    return optimizer


class GradientAccumulator:
    """Each replica's own sums of gradients over the batches of a step. Must be made in the strategy's scope.

    Used instead of Keras's gradient_accumulation_steps, which carries the end of an epoch over to the next one.
    """

    def __init__(self, variables: list[keras.Variable]) -> None:
        own = {"synchronization": tf.VariableSynchronization.ON_READ, "aggregation": tf.VariableAggregation.SUM}
        self.sums = []
        for variable in variables:
            with tf.device(variable.value.device):
                self.sums.append(tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False, **own))

    def add(self, gradients: Tensors) -> None:
        for total, gradient in zip(self.sums, gradients, strict=True):
            total.assign_add(gradient)

    def take(self) -> Tensors:
        """Returns the sums and resets them to zero."""
        gradients = [tf.identity(total) for total in self.sums]
        for total in self.sums:
            total.assign(tf.zeros_like(total))
        return gradients
