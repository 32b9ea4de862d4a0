"""Precision in TensorFlow: PyTorch's loss scaling for float16."""

import sys

import tensorflow as tf

from common.spec.state import ScaleState
from common.spec.update_rule import LossScaling


class LossScale:
    """The rule of torch.amp.GradScaler, see common.spec.update_rule. Must be made in the strategy's scope.

    Used instead of Keras's LossScaleOptimizer, which checks only the gradients of the first replica.
    """

    def __init__(self, rule: LossScaling) -> None:
        self.rule = rule
        first = {"trainable": False, "aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA}
        self.scale = tf.Variable(rule.initial, dtype=tf.float32, **first)
        self.good_steps = tf.Variable(0, dtype=tf.int32, **first)
        self.skipped = tf.Variable(0, dtype=tf.int64, **first)

    def get_state(self) -> ScaleState:
        return ScaleState(*(variable.numpy().item() for variable in (self.scale, self.good_steps, self.skipped)))

    def set_state(self, state: ScaleState) -> None:
        self.scale.assign(state.scale)
        self.good_steps.assign(state.good_steps)
        self.skipped.assign(state.skipped)

    def unscaled(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """This replica's gradients divided by the scale; all are NaN if any replica has one that isn't finite."""
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
        return [scaled_gradient(gradient, factor) for gradient in gradients]


def scaled_gradient(gradient: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """The product, computed on the gradient's device: each stage of a pipeline has its own gradients."""
    with tf.device(gradient.device):
        return gradient * factor


if __name__ == "__main__":
    # `python -m tf_impl.precision bf16-mixed` exits with 0 if this processor can multiply in half precision. It is a
    # process of its own (common.platform.processor), since an instruction that the processor lacks ends the process.
    # oneDNN multiplies with the instruction sets that it convolves with.
    matrix = tf.ones((64, 64), {"bf16-mixed": tf.bfloat16, "16-mixed": tf.float16}[sys.argv[1]])
    tf.matmul(matrix, matrix)
