"""PyTorch's update rules in Keras's operations, on any backend: the formulas of common/spec/optimizers.py.

Keras has other rules under the same names: docs/update-rules.md lists the differences.
"""

from typing import Any

import keras
from keras import ops

from common.spec import optimizers as rules
from common.spec.update_rule import UpdateRule


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
