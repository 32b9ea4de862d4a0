"""One training step in plain NumPy, in 64 bits. Audits compare it with steps of the timed runs, see `audits.py`.

It is written to be checked by eye, not to be fast. It shares no code with any implementation: only what `common/spec`
defines for all of them, such as the order of examples, the random numbers and the learning rates.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.experiment import Experiment
from common.platform.files import Arrays
from common.spec import optimizers as rules
from common.spec.batches import epoch_order
from common.spec.layers import (
    EPSILON,
    MOMENTUM,
    BatchNorm,
    Block,
    Conv,
    Dense,
    Dropout,
    Flatten,
    GlobalAveragePool,
    Layer,
    MaxPool,
    Relu,
    Residual,
)
from common.spec.networks import NetworkSpec, Weights
from common.spec.optimizers import Rule
from common.spec.options import TrainConfig
from common.spec.randomness import RATE_RESOLUTION, dropout_threshold, kept_by_dropout, visits
from common.spec.state import TrainState
from common.spec.update_rule import NORM_EPSILON
from comparison.lockstep import ROUNDOFF
from comparison.prove.recomputed import RecomputedNetwork

Array = NDArray[np.float64]
Backward = Callable[[Array], Array]  # from the gradient of a layer's output to that of its input


# --- The network ---


@dataclass
class ReferencePass:
    """A pass of examples through the network, forward and then backward.

    Attributes:
      trains: whether batch normalisation uses the statistics of these examples, and dropout drops.
      seed, visits: they decide what dropout draws for each example.
      roundoff: unit roundoff of a format: random errors of this relative size are added, as if computed in the format.
      winograd: whether convolutions may be computed with Winograd's algorithm, see `WINOGRAD_ERRORS`.
      gradients: of the trained parameters, by canonical name; `backward` adds to them.
      statistics: new running statistics of batch normalisation, by canonical name.
    """

    weights: Weights
    trains: bool
    seed: int = 0
    visits: NDArray[np.int64] | None = None
    roundoff: float = 0.0
    winograd: bool = False
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    gradients: Weights = field(default_factory=dict)
    statistics: Weights = field(default_factory=dict)
    dropouts: int = 0

    def errors(self, shape: tuple[int, ...]) -> Array:
        """Random errors with mean 0 and standard deviation `roundoff`.

        Normal, not uniform: a large error now and then makes the same jumps at ties as a framework's.
        """
        return self.roundoff * self.random.standard_normal(shape)

    def rounded(self, array: Array) -> Array:
        return array * (1 + self.errors(array.shape)) if self.roundoff else array

    def product(self, multiply: Callable[[Array, Array], Array], a: Array, b: Array, kernel_size: int = 1) -> Array:
        """Sums of products. The error of a sum grows like the root of the sum of the squares of its terms.

        This holds for independent errors (Higham and Mary, "A new approach to probabilistic rounding error analysis",
        2019). It matters where the terms cancel, as in front of a ReLU unit. Their size is computed in 32 bits. Where
        they add up, as in large logits, rounding the sum itself once more is the larger error.

        Args:
          kernel_size: of a convolution; 1 for matrix products.
        """
        sums = multiply(a, b)
        if not self.roundoff:
            return sums
        (a, largest_a), (b, largest_b) = _squares(a), _squares(b)
        terms = largest_a * largest_b * np.sqrt(multiply(a, b))
        if self.winograd:
            terms *= max(1.0, WINOGRAD_ERRORS.get(kernel_size, 0.0) / self.roundoff)
        return sums + self.errors(sums.shape) * np.hypot(terms, sums)

    def total(self, array: Array) -> Array:
        """The sum over all axes but the last.

        Partial sums, which are rounded too, may be larger than the sum. Of n numbers that are added one after the other
        the error grows like the root of n; `roundoff` is generous enough for SUMMED_NUMBERS of them. In half precision,
        sums are computed with more bits.
        """
        axes = tuple(range(array.ndim - 1))
        sums: Array = array.sum(axes)
        if not self.roundoff:
            return sums
        count = array[..., 0].size
        growth = max(1.0, count / SUMMED_NUMBERS) if self.roundoff < ROUNDOFF["16-mixed"] else 1.0
        size = count * np.sqrt(np.square(array).mean(axes) * growth)
        noisy: Array = sums + self.errors(sums.shape) * size
        return noisy

    def through(self, layers: Sequence[Layer], x: Array, prefix: str = "") -> tuple[Array, Backward]:
        """The output of a sequence of layers, and its backward pass."""
        steps: list[Backward] = []
        for layer in layers:
            x, backward = self._layer(layer, x, prefix)
            steps.append(backward)

        def whole(gradient: Array) -> Array:
            for backward in reversed(steps):
                gradient = backward(gradient)
            return gradient

        return x, whole

    def through_network(self, network: NetworkSpec, x: Array) -> tuple[Array, Backward]:
        """The logits of images, and the backward pass from their gradient."""
        if not isinstance(network, RecomputedNetwork):
            return self.through(network.layers, x)
        # Rounding in a layer changes its output as much as errors of its weights do. A gradient may be the difference
        # of larger numbers, and even zero for all weights, such as that of a bias of the keys in attention.
        weights = {name: self.rounded(array) for name, array in self.weights.items()}

        def backward(gradient: Array) -> Array:
            arrays = network.pass_back(weights, x, gradient)
            gradients = {name: arrays.pop(name) for name in network.trained}
            self.statistics |= {name: self.rounded(array) for name, array in arrays.items()}
            largest = max(float(np.sqrt(np.square(array).mean())) for array in gradients.values())
            for name, array in gradients.items():
                self._add(name, array + largest * self.errors(array.shape))
            return gradient

        return self.rounded(network.output(weights, x, self.trains)), backward

    def _layer(self, layer: Layer, x: Array, prefix: str) -> tuple[Array, Backward]:
        match layer:
            case Conv():
                return self._conv(layer, x, prefix + layer.name)
            case BatchNorm(name=name):
                return self._batch_norm(x, prefix + name)
            case Relu():
                return _relu(x)
            case MaxPool():
                return _max_pool(layer, x)
            case GlobalAveragePool():
                shape = x.shape
                size = shape[1] * shape[2]
                return x.mean((1, 2)), lambda g: np.broadcast_to(g[:, None, None] / size, shape)
            case Flatten():
                shape = x.shape
                return x.reshape(len(x), -1), lambda g: g.reshape(shape)
            case Dropout(rate=rate):
                return self._dropout(rate, x)
            case Dense():
                return self._dense(layer, x, prefix + layer.name)
            case Block(name=name, layers=inner):
                return self.through(inner, x, f"{prefix}{name}.")
            case Residual(name=name, body=body, shortcut=shortcut):
                long, back_long = self.through(body, x, f"{prefix}{name}.")
                short, back_short = self.through(shortcut, x, f"{prefix}{name}.")
                y, back_relu = _relu(long + short)

                def backward(gradient: Array) -> Array:
                    gradient = back_relu(gradient)
                    return back_long(gradient) + back_short(gradient)

                return y, backward

    def _add(self, name: str, gradient: Array) -> None:
        self.gradients[name] = self.gradients.get(name, 0.0) + self.rounded(gradient)

    def _conv(self, layer: Conv, x: Array, name: str) -> tuple[Array, Backward]:
        kernel = self.weights[f"{name}.kernel"]
        size, stride = layer.kernel_size, layer.stride
        edge = size // 2 if layer.padding == "same" else layer.padding
        padded = np.pad(x, ((0, 0), (edge, edge), (edge, edge), (0, 0)))
        height, width = ((length - size) // stride + 1 for length in padded.shape[1:3])

        images_at_once = max(1, CONVOLVED_TOGETHER // (height * width * kernel[..., 0].size))
        parts = [slice(start, start + images_at_once) for start in range(0, len(x), images_at_once)]

        def seen(images: Array) -> Array:
            """What the kernel is multiplied with, (n, height, width, channels, row, column); a view."""
            windows = np.lib.stride_tricks.sliding_window_view(images, (size, size), (1, 2))
            return windows[:, ::stride, ::stride]

        def convolve(images: Array, kernel: Array) -> Array:
            return np.concatenate([np.tensordot(seen(images[part]), kernel, ((4, 5, 3), (0, 1, 2))) for part in parts])

        def correlate(images: Array, gradient: Array) -> Array:
            places = ((0, 1, 2), (0, 1, 2))
            sums = sum(np.tensordot(seen(images[part]), gradient[part], places) for part in parts)
            return np.transpose(sums, (1, 2, 0, 3))

        def spread(gradient: Array, kernel: Array) -> Array:
            back = np.zeros(padded.shape, gradient.dtype)
            for part in parts:
                terms = np.tensordot(gradient[part], kernel, ((3,), (3,)))
                for row in range(size):
                    for column in range(size):
                        place = np.s_[row : row + stride * height : stride, column : column + stride * width : stride]
                        back[(part, *place)] += terms[..., row, column, :]
            return back

        y = self.product(convolve, padded, kernel, size)
        if layer.use_bias:
            y = y + self.weights[f"{name}.bias"]
        y, back_relu = _relu(y) if layer.relu else (y, _unchanged)

        def backward(gradient: Array) -> Array:
            gradient = back_relu(gradient)
            self._add(f"{name}.kernel", self.product(correlate, padded, gradient, size))
            if layer.use_bias:
                self._add(f"{name}.bias", self.total(gradient))
            back = self.product(spread, gradient, kernel, size)
            return back[:, edge : edge + x.shape[1], edge : edge + x.shape[2]]

        return y, backward

    def _dense(self, layer: Dense, x: Array, name: str) -> tuple[Array, Backward]:
        kernel = self.weights[f"{name}.kernel"]
        y = self.product(np.matmul, x, kernel) + self.weights[f"{name}.bias"]
        y, back_relu = _relu(y) if layer.relu else (y, _unchanged)

        def backward(gradient: Array) -> Array:
            gradient = back_relu(gradient)
            self._add(f"{name}.kernel", self.product(np.matmul, x.T, gradient))
            self._add(f"{name}.bias", self.total(gradient))
            return self.product(np.matmul, gradient, kernel.T)

        return y, backward

    def _batch_norm(self, x: Array, name: str) -> tuple[Array, Backward]:
        scale, offset = self.weights[f"{name}.scale"], self.weights[f"{name}.offset"]
        mean, variance = self.weights[f"{name}.mean"], self.weights[f"{name}.variance"]
        if self.trains:
            x = self.rounded(x)
            count = x[..., 0].size
            running = mean, variance
            mean = self.total(x) / count
            variance = self.total((x - mean) ** 2) / count
            new = mean, variance * count / max(1, count - 1)
            for kind, old, now in zip(("mean", "variance"), running, new, strict=True):
                self.statistics[f"{name}.{kind}"] = (1 - MOMENTUM) * old + MOMENTUM * now
        root = np.sqrt(variance + EPSILON)
        normal = (x - mean) / root

        def backward(gradient: Array) -> Array:
            of_scale, of_offset = self.total(gradient * normal), self.total(gradient)
            self._add(f"{name}.scale", of_scale)
            self._add(f"{name}.offset", of_offset)
            along = (of_offset + normal * of_scale) / gradient[..., 0].size
            return self.rounded(gradient - along) * scale / root

        return self.rounded(normal) * scale + offset, backward

    def _dropout(self, rate: float, x: Array) -> tuple[Array, Backward]:
        stream, self.dropouts = self.dropouts, self.dropouts + 1
        if not self.trains:
            return x, _unchanged
        assert self.visits is not None
        kept_values = kept_by_dropout(self.seed, self.visits, stream, math.prod(x.shape[1:]), rate).reshape(x.shape)
        factor = kept_values * (RATE_RESOLUTION / (RATE_RESOLUTION - dropout_threshold(rate)))
        return x * factor, lambda gradient: gradient * factor

    def losses(
        self, network: NetworkSpec, logits: Array, labels: NDArray[np.int64], smoothing: float = 0.0
    ) -> tuple[Array, Array]:
        """The loss of each example, and the gradient of their sum by the logits."""
        if not (isinstance(network, RecomputedNetwork) and network.has_own_loss):
            return self.cross_entropy(logits, labels, smoothing)
        # The gradient may be a difference of probabilities: small, but rounded as numbers near 1 are.
        losses, gradient = network.losses(self.rounded(logits), labels)
        return self.rounded(losses), gradient + np.maximum(1, np.abs(gradient)) * self.errors(gradient.shape)

    def cross_entropy(self, logits: Array, labels: NDArray[np.int64], smoothing: float = 0.0) -> tuple[Array, Array]:
        """The loss of each example, and the gradient of their sum by the logits."""
        shifted = logits - logits.max(1, keepdims=True)
        # The rounding of a sum near 1 is large compared with the loss of an example that is classified right.
        sums = self.rounded(np.exp(shifted).sum(1, keepdims=True))
        log_probabilities = self.rounded(shifted - np.log(sums))
        classes = logits.shape[1]
        wanted = (1 - smoothing) * np.eye(classes)[labels] + smoothing / classes
        return -(wanted * log_probabilities).sum(1), self.rounded(np.exp(log_probabilities)) - wanted


def _squares(array: Array) -> tuple[Array, float]:
    """The squares of all numbers divided by the largest, in 32 bits, and the largest."""
    largest = float(np.float32(max(array.max(), -array.min()))) or 1.0
    squares = np.divide(array, largest, dtype=np.float32, casting="same_kind")
    return np.square(squares, out=squares), largest


def _unchanged(gradient: Array) -> Array:
    return gradient


def _relu(x: Array) -> tuple[Array, Backward]:
    return np.maximum(x, 0), lambda gradient: gradient * (x > 0)


def _max_pool(layer: MaxPool, x: Array) -> tuple[Array, Backward]:
    size, stride, edge = layer.size, layer.stride, layer.padding
    padded = np.pad(x, ((0, 0), (edge, edge), (edge, edge), (0, 0)), constant_values=-math.inf)
    height, width = ((length - size) // stride + 1 for length in padded.shape[1:3])
    views = [
        np.s_[:, row : row + stride * height : stride, column : column + stride * width : stride]
        for row in range(size)
        for column in range(size)
    ]
    y = functools.reduce(np.maximum, (padded[view] for view in views))

    def backward(gradient: Array) -> Array:
        back, left = np.zeros_like(padded), np.ones(y.shape, bool)  # the first of equal numbers is the largest
        for view in views:
            largest = left & (padded[view] == y)
            back[view] += gradient * largest
            left &= ~largest
        return back[:, edge : edge + x.shape[1], edge : edge + x.shape[2]]

    return y, backward


# On GPUs, in 32 bits, cuDNN computes convolutions with Winograd's algorithm where that is faster. It subtracts large
# numbers, the larger the kernel the larger they are. Kernel size -> relative error of sums of independent products; a
# little more than weights' gradients showed on an H100 with cuDNN 9.19: 2.7e-4 to 3.8e-4 for 5 x 5, which is as much as
# with TF32, and 4e-6 to 9e-6 for 3 x 3. Without Winograd's algorithm it was 3e-7.
WINOGRAD_ERRORS = {3: 1e-5, 5: 4e-4}
SUMMED_NUMBERS = 4096  # numbers; 32 units of roundoff are nearly the root of 4096 / 3
EVALUATED_TOGETHER = 50  # test images
CONVOLVED_TOGETHER = 2**18  # numbers that kernels are multiplied with: what a processor's cache holds


def evaluate(experiment: Experiment, weights: Weights, count: int, roundoff: float = 0.0, seed: int = 0) -> Arrays:
    """The evaluation of the first `count` test images; `roundoff` and `seed` are those of `compute_gradients`.

    Returns:
      float64: `scores` (count,) of each likeliest class, the mean `loss` (1,), and how many are `correct` (1,).
    """
    data = experiment.dataset
    network = ReferencePass(
        _in_64_bits(weights),
        trains=False,
        roundoff=roundoff,
        winograd=_has_winograd(experiment.config),
        random=np.random.default_rng(seed),
    )
    parts = []
    for start in range(0, count, EVALUATED_TOGETHER):
        part = slice(start, min(count, start + EVALUATED_TOGETHER))
        labels = data.test_labels[part].astype(np.int64)
        inputs = network.rounded(_inputs(experiment, data.test_images[part], None))
        logits, _ = network.through_network(experiment.network, inputs)
        guesses = logits.argmax(1)
        losses, _ = network.losses(experiment.network, logits, labels)
        parts.append((network.cross_entropy(logits, guesses)[0], losses, guesses == labels))
    best, losses, correct = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    loss = network.total(losses[:, None]) / count
    return {"scores": np.exp(-best), "loss": loss, "correct": correct.sum(keepdims=True, dtype=np.float64)}


def _has_winograd(config: TrainConfig) -> bool:
    return config.accelerator == "gpu" and config.precision == "32"


# --- The step ---


def batch_positions(experiment: Experiment, step: int, epoch: int) -> list[list[NDArray[np.int64]]]:
    """For each batch of the step, for each shard of it: positions of its examples in the data set.

    Args:
      epoch: whose order the examples have.
    """
    plan, config = replace(experiment.plan, first_step=1), experiment.config
    order = epoch_order(config.seed, epoch, plan.train_size)
    in_epoch = plan.all_steps(plan.epoch_of(step))
    rows = plan.shards(plan.epoch_of(step), config.num_shards)
    begin = sum(plan.batches_in(earlier) for earlier in range(in_epoch.start, step))
    rows = rows[begin : begin + plan.batches_in(step)]
    return [[order[start:stop] for start, stop, _ in batch] for batch in rows]


@dataclass(frozen=True)
class Gradients:
    """What a step computes before it updates the weights. Loss scaling changes nothing here.

    Attributes:
      loss: mean over the examples of the step.
      gradients: of the trained parameters, by canonical name, clipped.
      statistics: new running statistics of batch normalisation, by canonical name.
    """

    loss: float
    gradients: Weights
    statistics: Weights


def compute_gradients(
    experiment: Experiment,
    before: TrainState,
    roundoff: float = 0.0,
    seed: int = 0,
    epoch: int | None = None,
) -> Gradients:
    """The forward and backward pass of the step after `before`, in 64 bits.

    Args:
      roundoff: see `ReferencePass`; `seed` is that of its random numbers.
      epoch: whose examples the step takes, a mistake that audits look for; None: those of its own epoch.
    """
    config, data, rule, step = experiment.config, experiment.dataset, experiment.update_rule, before.step + 1
    epoch = epoch or experiment.plan.epoch_of(step)
    batches = batch_positions(experiment, step, epoch)
    count = sum(len(shard) for batch in batches for shard in batch)
    # Batch normalisation takes the statistics of each replica's shard, unless it is synchronised.
    together = config.sync_batchnorm or not experiment.network.normalises
    weights, gradients, loss = _in_64_bits(before.weights), dict[str, Array](), 0.0
    new: Weights = {}
    random = np.random.default_rng(seed)
    for batch in batches:
        shards = [np.concatenate(batch)] if together else [shard for shard in batch if len(shard)]
        statistics: Weights = {}
        for shard in shards:
            labels, seen = data.train_labels[shard].astype(np.int64), visits(epoch, shard)
            network = ReferencePass(
                weights | new, True, config.seed, seen, roundoff, _has_winograd(config), random, gradients
            )
            inputs = _inputs(experiment, data.train_images[shard], seen)
            logits, backward = network.through_network(experiment.network, network.rounded(inputs))
            losses, gradient = network.losses(experiment.network, logits, labels, config.label_smoothing)
            backward(network.rounded(gradient / count))
            loss += network.total(losses[:, None]).item() / count
            statistics = statistics or network.statistics  # those of the first replica
        new |= statistics
    if rule.largest_norm is not None:
        norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients.values()))
        factor = min(1.0, rule.largest_norm / (norm + NORM_EPSILON))
        gradients = {name: gradient * factor for name, gradient in gradients.items()}
    return Gradients(loss, gradients, new)


def apply_gradients(experiment: Experiment, before: TrainState, gradients: Weights, statistics: Weights) -> TrainState:
    """The state after the step after `before`, in 64 bits."""
    rule, step = experiment.update_rule, before.step + 1
    weights = _in_64_bits(before.weights)
    new = weights | statistics
    rate = float(rule.learning_rates[step - 1])
    slots: dict[str, Weights] = {slot: {} for slot in before.slots}
    for name, gradient in gradients.items():
        own = {slot: values[name].astype(np.float64) for slot, values in before.slots.items()}
        new[name], changed = update(rule.rule, weights[name], gradient, own, rate, before.steps_taken + 1)
        for slot, value in changed.items():
            slots[slot][name] = value
    return TrainState(step, new, slots, before.scale)


def _inputs(experiment: Experiment, images: NDArray[Any], seen: NDArray[np.int64] | None) -> Array:
    """What the network gets: normalised images, augmented for these visits unless they are None."""
    data = experiment.dataset
    if experiment.augmentation and seen is not None:
        return experiment.augmentation(images, seen, data.shift, data.scale)
    normalised: Array = (images.astype(np.float64) - data.shift) * data.scale
    return normalised


def update(
    rule: Rule, w: Array, g: Array, slots: dict[str, Array], rate: float, taken: int
) -> tuple[Array, dict[str, Array]]:
    """New weights and slots from the gradient g; the formulas are those of `common.spec.optimizers`.

    Args:
      taken: number of the step, from 1, without those that loss scaling has skipped.
    """
    if isinstance(rule, rules.AdamW):
        w = (1 - rate * rule.weight_decay) * w
    else:
        g = g + rule.weight_decay * w
    match rule:
        case rules.SGD():
            if not rule.momentum:
                return w - rate * g, {}
            v = rule.momentum * slots["velocity"] + g
            return w - rate * (g + rule.momentum * v if rule.nesterov else v), {"velocity": v}
        case rules.Adam() | rules.AdamW():
            m = rule.beta1 * slots["mean"] + (1 - rule.beta1) * g
            v = rule.beta2 * slots["square"] + (1 - rule.beta2) * g**2
            root = np.sqrt(v / (1 - rule.beta2**taken))
            return w - rate / (1 - rule.beta1**taken) * m / (root + rule.epsilon), {"mean": m, "square": v}
        case rules.Adadelta():
            v = rule.rho * slots["square"] + (1 - rule.rho) * g**2
            x = np.sqrt(slots["change"] + rule.epsilon) / np.sqrt(v + rule.epsilon) * g
            u = rule.rho * slots["change"] + (1 - rule.rho) * x**2
            return w - rate * x, {"square": v, "change": u}


def _in_64_bits(weights: Weights) -> Weights:
    return {name: array.astype(np.float64) for name, array in weights.items()}
