"""PyTorch's update rules in Keras, on any backend: the shared ones, see common/spec/optimizers.py."""

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


def larger(one: Any, other: Any) -> Any:
    """The larger of two numbers each; on PyTorch `ops.maximum` cuts them to 32 bits."""
    return one * (one >= other) + other * (one < other)


class Optimizer(keras.optimizers.Optimizer):
    """All rules: Keras has others under the same names, see docs/update-rules.md."""

    def __init__(self, update_rule: UpdateRule) -> None:
        super().__init__(LearningRates(update_rule))
        self.rule: Any = update_rule.rule
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
            factor = -larger(-1 + 0 * norm, -self.largest_norm / (norm + NORM_EPSILON))
            grads = [gradient * factor for gradient in grads]
        super().apply(grads, trainable_variables)

    def update_step(self, gradient: Any, variable: keras.Variable, learning_rate: Any) -> None:
        """Updates a variable and its slots; Keras calls it for each variable."""
        rule, weights = self.rule, ops.convert_to_tensor(variable)
        gradient = ops.cast(gradient, variable.dtype)
        slots = self.slots_of(variable)
        decoupled = isinstance(rule, rules.AdamW)
        if rule.weight_decay and not decoupled:
            gradient = gradient + rule.weight_decay * weights
        change, values = self.change(gradient, [ops.convert_to_tensor(slot) for slot in slots])
        if rule.weight_decay and decoupled:
            change = change + rule.weight_decay * weights
        for slot, value in zip(slots, values, strict=True):
            self.assign(slot, value)
        self.assign_sub(variable, ops.cast(learning_rate, variable.dtype) * change)

    def change(self, gradient: Any, slots: list[Any]) -> tuple[Any, list[Any]]:
        """The change of a variable, to be multiplied by the learning rate and subtracted; and its new slots."""
        rule = self.rule
        match rule:
            case rules.SGD():
                if not rule.momentum:
                    return gradient, []
                velocity = rule.momentum * slots[0] + gradient
                return gradient + rule.momentum * velocity if rule.nesterov else velocity, [velocity]
            case rules.Adam() | rules.AdamW():
                mean = rule.beta1 * slots[0] + (1 - rule.beta1) * gradient
                square = rule.beta2 * slots[1] + (1 - rule.beta2) * gradient**2
                largest = [larger(slots[2], square)] if rule.amsgrad else []
                # In 64 bits, as in PyTorch: in 32 bits, 1 - beta2 has few correct digits.
                steps = ops.cast(self.iterations + 1, "float64")
                first, second = (ops.cast(1 - beta**steps, gradient.dtype) for beta in (rule.beta1, rule.beta2))
                root = ops.sqrt((largest or [square])[0]) / ops.sqrt(second)
                return mean / first / (root + rule.epsilon), [mean, square, *largest]
            case rules.Adadelta():
                square = rule.rho * slots[0] + (1 - rule.rho) * gradient**2
                change = ops.sqrt(slots[1] + rule.epsilon) / ops.sqrt(square + rule.epsilon) * gradient
                return change, [square, rule.rho * slots[1] + (1 - rule.rho) * change**2]
            case rules.RMSprop():
                new = [rule.alpha * slots[0] + (1 - rule.alpha) * gradient**2]
                variance = new[0]
                if rule.centered:
                    new.append(rule.alpha * slots[1] + (1 - rule.alpha) * gradient)
                    variance = variance - new[1] ** 2
                change = gradient / (ops.sqrt(variance) + rule.epsilon)
                if rule.momentum:
                    change = rule.momentum * slots[-1] + change
                    new.append(change)
                return change, new
        raise AssertionError(rule)
