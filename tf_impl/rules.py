"""PyTorch's update rules in Keras's operations, on any backend: the formulas of common/spec/optimizers.py.

Keras has other rules under the same names: docs/training.md lists the differences.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from common.spec import optimizers as rules
from common.spec.update_rule import NORM_EPSILON, UpdateRule


class LearningRates(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate of every step, from the shared table."""

    def __init__(self, update_rule: UpdateRule) -> None:
        self.rates = update_rule.learning_rates

    def __call__(self, step: Any) -> Any:
        return ops.take(ops.convert_to_tensor(self.rates), ops.cast(step, "int32"))


def update(rule: Any, weights: Any, gradient: Any, slots: list[Any], steps: Any) -> tuple[Any, list[Any]]:
    """The change of the weights, to be multiplied by the learning rate and subtracted; and the new slots.

    Args:
      steps: float64: number of steps taken, including this one.
    """
    decoupled = isinstance(rule, rules.AdamW)
    if rule.weight_decay and not decoupled:
        gradient = gradient + rule.weight_decay * weights
    change, new = _change(rule, gradient, slots, steps)
    if rule.weight_decay and decoupled:
        change = change + rule.weight_decay * weights
    return change, new


def _change(rule: Any, gradient: Any, slots: list[Any], steps: Any) -> tuple[Any, list[Any]]:
    match rule:
        case rules.SGD():
            if not rule.momentum:
                return gradient, []
            velocity = rule.momentum * slots[0] + gradient
            return gradient + rule.momentum * velocity if rule.nesterov else velocity, [velocity]
        case rules.Adam() | rules.AdamW():
            mean = rule.beta1 * slots[0] + (1 - rule.beta1) * gradient
            square = rule.beta2 * slots[1] + (1 - rule.beta2) * gradient**2
            # In 64 bits, as in PyTorch: in 32 bits, 1 - beta2 has few correct digits.
            first, second = (ops.cast(1 - beta**steps, gradient.dtype) for beta in (rule.beta1, rule.beta2))
            root = ops.sqrt(square) / ops.sqrt(second)
            return mean / first / (root + rule.epsilon), [mean, square]
        case rules.Adadelta():
            square = rule.rho * slots[0] + (1 - rule.rho) * gradient**2
            change = ops.sqrt(slots[1] + rule.epsilon) / ops.sqrt(square + rule.epsilon) * gradient
            return change, [square, rule.rho * slots[1] + (1 - rule.rho) * change**2]
    raise AssertionError(rule)


class RuleOptimizer(keras.optimizers.Optimizer):
    """A Keras optimizer with any of these rules, and with clipped gradients; for one device.

    Attributes:
      loss_scale: the state of loss scaling; None if the loss is not scaled.
    """

    loss_scale: Any = None

    def __init__(self, update_rule: UpdateRule) -> None:
        super().__init__(LearningRates(update_rule))
        self.rule, self.largest_norm = update_rule.rule, update_rule.largest_norm

    def build(self, variables: list[keras.Variable]) -> None:
        super().build(variables)
        slots = self.add_optimizer_variables(variables, self.rule.slots)
        places = {id(copy): place for place, variable in enumerate(variables) for copy in self.copies(variable)}
        # Functions, since Keras would wrap lists and dictionaries to track their contents.
        self.slots_of = lambda variable: [of_slot[places[id(variable)]] for of_slot in slots]
        # For checkpoints: the variables of each of the rule's slots, in the order of `variables`.
        self.slots = lambda: slots

    def copies(self, variable: keras.Variable) -> Sequence[Any]:
        """What `update_step` gets for this variable: with several replicas, one of their copies."""
        return [variable]

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        super().apply(grads if self.largest_norm is None else self.clipped(grads), trainable_variables)

    def clipped(self, gradients: Sequence[Any]) -> list[Any]:
        """The gradients, scaled down if the norm of all of them is too large.

        Used instead of Keras's global_clipnorm, which lacks NORM_EPSILON.
        """
        norm = ops.sqrt(sum(ops.sum(gradient * gradient) for gradient in gradients))
        factor = self.largest_norm / (norm + NORM_EPSILON)
        return [ops.where(factor < 1, gradient * factor, gradient) for gradient in gradients]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates a variable and its slots; Keras calls it for each variable."""
        slots, rate = self.slots_of(variable), ops.cast(learning_rate, variable.dtype)
        gradient, before = ops.cast(gradient, variable.dtype), [ops.convert_to_tensor(slot) for slot in slots]
        change, after = update(self.rule, ops.convert_to_tensor(variable), gradient, before, self.steps_taken)
        if self.loss_scale:  # the gradients of a skipped step are NaN
            taken = ops.isfinite(gradient)
            change = ops.where(taken, change, ops.zeros_like(change))
            after = [ops.where(taken, *values) for values in zip(after, before, strict=True)]
        for slot, value in zip(slots, after, strict=True):
            self.assign(slot, value)
        self.assign_sub(variable, rate * change)

    @property
    def steps_taken(self) -> Any:
        """float64: number of steps taken, including this one and without the skipped ones."""
        steps = ops.cast(self.iterations + 1, "float64")
        return steps - ops.cast(self.loss_scale.skipped, "float64") if self.loss_scale else steps
