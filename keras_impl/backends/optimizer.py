"""The optimizer in Keras, on any backend."""

from typing import Any

import keras
from keras import ops

from common.spec.update_rule import NORM_EPSILON, UpdateRule
from tf_impl.rules import LearningRates, update


class Optimizer(keras.optimizers.Optimizer):
    """With any rule of tf_impl/rules.py."""

    def __init__(self, update_rule: UpdateRule) -> None:
        super().__init__(LearningRates(update_rule))
        self.rule = update_rule.rule
        self.largest_norm = update_rule.largest_norm

    def build(self, variables: list[keras.Variable]) -> None:
        super().build(variables)
        rows = [
            [self.add_variable_from_reference(variable, name) for name in self.rule.slots] for variable in variables
        ]
        by_variable = {id(variable): row for variable, row in zip(variables, rows, strict=True)}
        # Functions, since Keras would wrap lists and dictionaries to track their contents.
        self.slots_of = lambda variable: by_variable[id(variable)]
        # For checkpoints: the variables of each of the rule's slots, in the order of `variables`.
        self.slots = lambda: list(zip(*rows, strict=True))

    def apply(self, grads: list[Any], trainable_variables: Any = None) -> None:
        if self.largest_norm is not None:  # instead of Keras's global_clipnorm, which lacks NORM_EPSILON
            norm = ops.sqrt(sum(ops.sum(gradient * gradient) for gradient in grads))
            factor = self.largest_norm / (norm + NORM_EPSILON)
            grads = [ops.where(factor < 1, gradient * factor, gradient) for gradient in grads]
        super().apply(grads, trainable_variables)

    def update_step(self, gradient: Any, variable: keras.Variable, learning_rate: Any) -> None:
        """Updates a variable and its slots; Keras calls it for each variable."""
        weights, slots = ops.convert_to_tensor(variable), self.slots_of(variable)
        gradient, steps = ops.cast(gradient, variable.dtype), ops.cast(self.iterations + 1, "float64")
        change, values = update(self.rule, weights, gradient, [ops.convert_to_tensor(slot) for slot in slots], steps)
        for slot, value in zip(slots, values, strict=True):
            self.assign(slot, value)
        self.assign_sub(variable, ops.cast(learning_rate, variable.dtype) * change)
