"""Which layer of a port is which layer of the reference: found while the port runs, from what goes into each layer.

The layers that have parameters are followed through one pass over a batch, in 64 bits. A `LayerCall` is one use of such
a layer. The reference's calls are recorded with their weights, inputs and outputs. In the port, each layer gets its
weights just before it is used. By then all layers before it have the reference's weights. So its input is equal to that
of its counterpart, to rounding error, unless the port has departed before; kind and shapes must be equal in any case.

Arrays are canonical: images and features have their channels last, kernels are (height, width, in, out) or (in, out).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from port.layers import OWN_PARAMETER, Array, Layer, Weights

# Relative difference. Rounding in 64 bits stays far below. So do parts that frameworks compute in 32 bits whatever the
# precision: constants of TensorFlow's gelu (5e-9) and leaky_relu (2e-9), Keras's attention (1e-7).
SAME_WITHIN = 1e-6


@dataclass(eq=False)
class LayerCall:
    """One use of a layer that has parameters.

    Attributes:
      layer: the layer's name in its own network.
      kind, settings: see `Layer`.
      weights: what the layer has before the first step.
      input, output: of the first training pass, before a ReLU or another activation that is a part of the layer;
        OWN_PARAMETER has none.
      order: how the input's flattened features must be reordered to become the reference's; None: not at all.
      gradients: of the first step, with the reference's order of features, as `statistics`.
      statistics: the running statistics after the first pass. Their variance is PyTorch's: unbiased.
      eval_output: in evaluation, with the reference's statistics; None if the layer is not used there.
    """

    layer: str
    kind: str
    settings: dict[str, Any]
    weights: Weights
    input: Array
    output: Array | None = None
    order: Array | None = None
    gradients: Weights = field(default_factory=dict)
    statistics: Weights = field(default_factory=dict)
    eval_output: Array | None = None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {kind: array.shape for kind, array in self.weights.items()}

    @property
    def input_in_order(self) -> Array:
        """The input with its features in the reference's order."""
        return self.input if self.order is None else self.input[:, self.order]

    def in_order(self, output: Array | None) -> Array | None:
        """An output with its features in the reference's order; a dense layer's are others than its input's."""
        return output if self.order is None or output is None or self.kind == "dense" else output[:, self.order]

    def to_port(self, weights: Weights) -> Weights:
        """The reference's parameters, as far as this layer has them, with the port's order of features."""
        order = None if self.order is None else np.argsort(self.order)
        return self._reordered({kind: weights[kind] for kind in self.weights if kind in weights}, order)

    def from_port(self, weights: Weights) -> Weights:
        """`to_port` backwards."""
        return self._reordered(weights, self.order)

    def _reordered(self, weights: Weights, order: Array | None) -> Weights:
        """In another order where the first axis of a parameter is that of the input's features."""
        if order is None:
            return weights
        own = {kind for kind, array in self.weights.items() if len(array) == self.input.shape[-1]}
        reordered = {"kernel"} if self.kind == "dense" else own
        return {kind: array[order] if kind in reordered else array for kind, array in weights.items()}

    def is_like(self, other: "LayerCall") -> bool:
        """Whether kind and shapes are the same, but for a bias that one of them lacks."""
        kernel = self.shapes.get("kernel")
        same_kernel = kernel is not None and kernel == other.shapes.get("kernel")
        return self.kind == other.kind and (self.shapes == other.shapes or same_kernel)


@dataclass(frozen=True, eq=False)
class Dropout:
    """One use of dropout that drops.

    Attributes:
      after: the name of the last layer that has ended before.
      values: what it gets, sorted, since frameworks lay out features differently; None inside of an attention layer.
    """

    rate: float
    after: str
    values: Array | None

    def is_like(self, other: "Dropout") -> bool:
        """Whether both have the same effect: a ReLU may as well follow as precede."""
        if self.rate != other.rate or self.values is None or other.values is None:
            return self.rate == other.rate and self.values is other.values
        positive = [np.maximum(values, 0) for values in (self.values, other.values)]
        is_relu = self.values[0] >= 0 or other.values[0] >= 0
        return array_difference(self.values, other.values) <= SAME_WITHIN or (
            is_relu and array_difference(*positive) <= SAME_WITHIN
        )


class Execution:
    """The calls of one pass, in their order; in a port's first pass, paired with the reference's.

    Attributes:
      calls, dropouts, output: of this network; the output has the shape (n, classes).
      pairs: number of a call -> number of the reference's call; only in a port's first pass.
      ways: for each call whose counterpart could not be told by input and name, how many there were to choose from.
    """

    def __init__(
        self, reference: Sequence[LayerCall] = (), names: Mapping[str, str] | None = None, choices: Sequence[int] = ()
    ) -> None:
        """Args:
        reference: its calls; none in a pass that pairs nothing.
        names: of layers that the user has paired: the port's -> the reference's.
        choices: for each of `ways`, which counterpart to take; by default the first one.
        """
        self.calls: list[LayerCall] = []
        self.dropouts: list[Dropout] = []
        self.output: Array = np.empty(0)
        self.pairs: dict[int, int] = {}
        self.ways: list[int] = []
        self.reference = reference
        self.names = dict(names or {})  # and of the layers that are paired in this pass
        self.choices = iter(choices)
        self.begun: list[LayerCall] = []  # calls that have not ended
        self.departs = False  # whether a call has no counterpart with the same input
        self.last = "the images"  # the name of the last layer that has ended

    def enter(self, layer: Layer, x: Array | None) -> None:
        """Before a layer is used, with the input `x`; None for OWN_PARAMETER. Gives it its counterpart's weights."""
        call = LayerCall(layer.name, layer.kind, layer.settings, layer.get(), np.empty(0) if x is None else x)
        self.calls.append(call)
        if layer.kind != OWN_PARAMETER:
            self.begun.append(call)
        if (paired := self._counterpart(call)) is not None:
            other = self.reference[paired]
            self.pairs[len(self.calls) - 1] = paired
            self.names.setdefault(call.layer, other.layer)
            _, call.order = compare_inputs(call, other)
            call.weights |= call.to_port(other.weights)
            layer.set(call.weights)

    def leave(self, output: Array) -> None:
        """After a layer was used that is not OWN_PARAMETER."""
        call = self.begun.pop()
        call.output, self.last = output, call.layer

    def drop(self, rate: float, x: Array | None = None) -> None:
        """Dropout is used, with the input `x`, which it leaves as it is."""
        if rate:
            self.dropouts.append(Dropout(rate, self.last, None if x is None else np.sort(x, axis=None)))

    def _counterpart(self, call: LayerCall) -> int | None:
        """The reference's free call of the same layer, input and name; None if there is none.

        Behind a departure no inputs are the same, so name or order must do.
        """
        paired = set(self.pairs.values())
        free = {number: other for number, other in enumerate(self.reference) if number not in paired}
        if name := self.names.get(call.layer):  # paired by the user, or when it was used before
            return next((number for number, other in free.items() if other.layer == name), None)
        used = set(self.names.values())
        alike = {number: other for number, other in free.items() if other.layer not in used and other.is_like(call)}
        fed = [number for number, other in alike.items() if compare_inputs(call, other)[0]]
        named = [number for number in fed or alike if plain_name(alike[number].layer) == plain_name(call.layer)]
        candidates, choice = [*named, *fed] or [*alike], 0
        # Branches from the same features; or the first call with an input that the reference never has.
        if len(candidates) > 1 and not named and (fed or not self.departs):
            self.ways.append(len(candidates))
            choice = next(self.choices, 0) % len(candidates)
        self.departs = self.departs or not fed
        return candidates[choice] if candidates else None


def compare_inputs(call: LayerCall, other: LayerCall) -> tuple[bool, Array | None]:
    """Whether both calls have the same input, and how the call's must be reordered for that."""
    if array_difference(call.input, other.input) <= SAME_WITHIN:
        return True, None
    size = call.input.shape[-1]
    if call.input.ndim == 2 and call.input.shape == other.input.shape:
        for channels in range(2, size):
            if size % channels == 0:  # from channels first to channels last; or back, where `channels` is the rest
                order = np.arange(size).reshape(channels, -1).T.ravel()
                if array_difference(call.input[:, order], other.input) <= SAME_WITHIN:
                    return True, order
    return False, None


def array_difference(array: Array | None, other: Array | None) -> float:
    """The largest difference of two arrays, relative to the largest value; infinity if the shapes differ.

    Axes of one position don't count: (n, 1, 1, channels) is (n, channels).
    """
    if array is None or other is None:
        return math.inf
    array, other = array.squeeze(), other.squeeze()
    if array.shape != other.shape:
        return math.inf
    largest = float(np.abs(other).max(initial=0.0))
    apart = float(np.abs(array - other).max(initial=0.0))
    if math.isnan(apart) or math.isnan(largest):
        return math.inf
    return apart / largest if largest else apart


def plain_name(name: str) -> str:
    """A layer's name without what frameworks write differently: `layer1.0.conv1` and `layer1_0_conv1`."""
    return name.lower().replace(".", "_").replace("/", "_")
