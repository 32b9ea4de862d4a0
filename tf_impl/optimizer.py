"""PyTorch's update rules in Keras: the shared ones, see common/spec/optimizers.py.

Keras has other rules under the same names: docs/update-rules.md lists the differences.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from common.spec import optimizers as rules
from common.spec.options import TrainConfig
from common.spec.update_rule import NORM_EPSILON, LossScaling, UpdateRule
from tf_impl.precision import LossScale, scaled

Tensors = list[tf.Tensor]


class LearningRates(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate of every step, from the shared table."""

    def __init__(self, update_rule: UpdateRule) -> None:
        self.rates = tf.constant(update_rule.learning_rates)

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        return tf.gather(self.rates, tf.cast(step, tf.int32))


class Optimizer(keras.optimizers.Optimizer):
    """Base class of all rules: slots, weight decay, and steps that the loss scaling skips."""

    def __init__(self, update_rule: UpdateRule, scaling: LossScaling | None) -> None:
        """`scaling`: None if the loss is not scaled."""
        averages = {"use_ema": True, "ema_momentum": update_rule.ema_decay} if update_rule.ema_decay else {}
        super().__init__(LearningRates(update_rule), **averages)
        self.rule: Any = update_rule.rule
        self.largest_norm = update_rule.largest_norm
        self.loss_scale = LossScale(scaling) if scaling else None

    def change(self, gradient: tf.Tensor, slots: Tensors) -> tuple[tf.Tensor, Tensors]:
        """The change of a variable, to be multiplied by the learning rate and subtracted; and its new slots."""
        raise NotImplementedError

    def build(self, variables: list[keras.Variable]) -> None:
        before = len(self.variables)
        super().build(variables)
        averages = self.variables[before:]
        strategy, slots, rows = tf.distribute.get_strategy(), {}, []
        for variable in variables:
            own = [self.add_variable_from_reference(variable, name) for name in self.rule.slots]
            rows.append(own)
            for copy in strategy.experimental_local_results(variable.value):
                slots[copy.ref()] = own
        # `update_step` gets one replica's copy of a variable; this finds the slots that belong to it. It is a function,
        # since Keras would wrap a dictionary to track its contents.
        self.slots_of = lambda variable: slots[variable.ref()]
        # For checkpoints: the variables of each of the rule's slots, and the averages, in the order of `variables`.
        self.slots = lambda: list(zip(*rows, strict=True))
        self.averages = lambda: averages

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        return loss * self.loss_scale.scale if self.loss_scale else loss

    def apply_gradients(self, grads_and_vars: Iterable[tuple[tf.Tensor, keras.Variable]]) -> Any:
        gradients, variables = zip(*grads_and_vars, strict=True)
        if self.loss_scale:
            gradients = self.loss_scale.unscaled(gradients)
        if self.largest_norm is not None:
            gradients = self.clipped(gradients)
        return super().apply_gradients(zip(gradients, variables, strict=True))

    def clipped(self, gradients: Tensors) -> Tensors:
        """This replica's gradients, scaled down if the norm of all replicas' summed gradients is too large.

        Used instead of Keras's global_clipnorm, which takes the norm of each replica's own gradients.
        """
        sums = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        norm = tf.linalg.global_norm(sums)
        factor = tf.minimum(tf.ones([], norm.dtype), self.largest_norm / (norm + NORM_EPSILON))
        return [scaled(gradient, factor) for gradient in gradients]

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        """Updates a variable and its slots; Keras calls it for each variable."""
        with tf.device(variable.device):  # each stage of a pipeline computes its own updates
            self.update(gradient, variable, learning_rate)

    def update(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        rate, decay = (tf.cast(value, variable.dtype) for value in (learning_rate, self.rule.weight_decay))
        taken = tf.math.is_finite(gradient) if self.loss_scale else True
        decoupled = isinstance(self.rule, rules.AdamW)
        if self.rule.weight_decay and not decoupled:
            gradient = gradient + decay * variable
        slots = self.slots_of(variable)
        change, values = self.change(gradient, [tf.convert_to_tensor(slot) for slot in slots])
        if self.rule.weight_decay and decoupled:
            change = change + decay * variable
        for slot, value in zip(slots, values, strict=True):
            self.assign(slot, where(taken, value, slot))
        self.assign_sub(variable, where(taken, rate * change, 0.0))

    @property
    def steps_taken(self) -> tf.Tensor:
        """float64: number of steps taken, including this one and without the skipped ones."""
        return tf.cast(self.loss_scale.taken if self.loss_scale else self.iterations + 1, tf.float64)

    @property
    def skipped_steps(self) -> int | None:
        return self.loss_scale.skipped.numpy().item() if self.loss_scale else None


def where(taken: tf.Tensor | bool, new: tf.Tensor, otherwise: Any) -> tf.Tensor:
    """tf.where; just `new`, without an operation, if every step is taken."""
    return new if taken is True else tf.where(taken, new, otherwise)


def mean(decay: float, before: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
    """The moving average."""
    return tf.cast(decay, new.dtype) * before + tf.cast(1 - decay, new.dtype) * new


# --- A rule each: the formulas of common/spec/optimizers.py ---


class SGD(Optimizer):
    def change(self, gradient: tf.Tensor, slots: Tensors) -> tuple[tf.Tensor, Tensors]:
        if not self.rule.momentum:
            return gradient, []
        momentum = tf.cast(self.rule.momentum, gradient.dtype)
        velocity = momentum * slots[0] + gradient
        return gradient + momentum * velocity if self.rule.nesterov else velocity, [velocity]


class Adam(Optimizer):
    def change(self, gradient: tf.Tensor, slots: Tensors) -> tuple[tf.Tensor, Tensors]:
        rule, dtype = self.rule, gradient.dtype
        # In 64 bits, as in PyTorch: in 32 bits, 1 - beta2 has few correct digits.
        corrections = (1 - tf.pow(tf.constant(beta, tf.float64), self.steps_taken) for beta in (rule.beta1, rule.beta2))
        first, second = (tf.cast(correction, dtype) for correction in corrections)
        average, square = mean(rule.beta1, slots[0], gradient), mean(rule.beta2, slots[1], gradient**2)
        largest = [tf.maximum(slots[2], square)] if rule.amsgrad else []
        root = tf.sqrt((largest or [square])[0]) / tf.sqrt(second)
        change = average / first / (root + tf.cast(rule.epsilon, dtype))
        return change, [average, square, *largest]


class Adadelta(Optimizer):
    def change(self, gradient: tf.Tensor, slots: Tensors) -> tuple[tf.Tensor, Tensors]:
        epsilon = tf.cast(self.rule.epsilon, gradient.dtype)
        square = mean(self.rule.rho, slots[0], gradient**2)
        change = tf.sqrt(slots[1] + epsilon) / tf.sqrt(square + epsilon) * gradient
        return change, [square, mean(self.rule.rho, slots[1], change**2)]


class RMSprop(Optimizer):
    def change(self, gradient: tf.Tensor, slots: Tensors) -> tuple[tf.Tensor, Tensors]:
        rule, dtype = self.rule, gradient.dtype
        new = [mean(rule.alpha, slots[0], gradient**2)]
        variance = new[0]
        if rule.centered:
            new.append(mean(rule.alpha, slots[1], gradient))
            variance = variance - new[1] ** 2
        change = gradient / (tf.sqrt(variance) + tf.cast(rule.epsilon, dtype))
        if rule.momentum:
            change = tf.cast(rule.momentum, dtype) * slots[-1] + change
            new.append(change)
        return change, new


OPTIMIZERS: dict[type[rules.Rule], type[Optimizer]] = {
    rules.SGD: SGD,
    rules.Adam: Adam,
    rules.AdamW: Adam,
    rules.Adadelta: Adadelta,
    rules.RMSprop: RMSprop,
}


def make_optimizer(network: keras.Model, update_rule: UpdateRule, config: TrainConfig) -> Optimizer:
    kind = OPTIMIZERS[type(update_rule.rule)]
    optimizer = kind(update_rule, LossScaling() if config.precision == "16-mixed" else None)
    optimizer.build(network.trainable_variables)  # the caller is in the strategy's scope
    return optimizer


@contextmanager
def average_weights(network: keras.Model, optimizer: Optimizer) -> Iterator[None]:
    """Replaces the weights by their moving average inside the context; does nothing if there is no average."""
    if not optimizer.use_ema:
        yield
        return
    weights = network.get_weights()
    optimizer.finalize_variable_values(network.trainable_variables)
    yield
    network.set_weights(weights)


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
