"""Which layer of a port is which layer of the reference: found while the port runs, from what goes into each layer.

The layers that have parameters are followed through one pass over a batch, in 64 bits. A `Call` is one use of such a
layer. The reference's calls are recorded with their weights, inputs and outputs. In the port, each layer gets its
weights just before it is used. By then all layers before it have the reference's weights. So its input is equal to that
of its counterpart, to rounding error, unless the port has departed before; kind and shapes must be equal in any case.

Arrays are canonical: images and features have their channels last, kernels are (height, width, in, out) or (in, out).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Weights = dict[str, Array]  # kind of a parameter, such as "kernel" -> canonical array
# Relative difference. Rounding in 64 bits stays far below. So do parts that frameworks compute in 32 bits whatever the
# precision: constants of TensorFlow's gelu (5e-9) and leaky_relu (2e-9), JAX's attention (1e-7).
SAME = 1e-6
EMPTY: Mapping[int, int] = {}
NO_NAMES: Mapping[str, str] = {}
NEW_SHARE = "momentum (share of the new statistics)"  # a setting, which PyTorch and Keras count from other ends
OWN = "parameter"  # the kind of a layer that is a single parameter of a class of the user's


class Layer(Protocol):
    """A layer with parameters, in its framework; weights are canonical. See `Call` for its attributes."""

    name: str
    kind: str
    settings: dict[str, Any]

    def get(self) -> Weights: ...

    def set(self, weights: Weights) -> None: ...


@dataclass
class Call:
    """One use of a layer that has parameters.

    Attributes:
      layer: its name in its own network.
      kind: "conv", "conv transpose", "dense", "batch norm", "layer norm", "group norm", "attention", "embedding",
        "prelu" or OWN.
      settings: what else decides its output, by name, such as the strides.
      weights: what it has before the first step.
      input, output: of the first training pass, before a ReLU or another activation that is a part of the layer; OWN
        has none.
      order: how the input's flattened features must be reordered to become the reference's; None: not at all.
    """

    layer: str
    kind: str
    settings: dict[str, Any]
    weights: Weights
    input: Array
    output: Array | None = None
    order: Array | None = field(default=None, repr=False)

    @classmethod
    def of(cls, layer: Layer, x: Array | None = None) -> "Call":
        """A call of this layer with the input `x`; None if it has none."""
        return cls(layer.name, layer.kind, layer.settings, layer.get(), np.empty(0) if x is None else x)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {kind: array.shape for kind, array in self.weights.items()}

    @property
    def input_in_order(self) -> Array:
        """The input with its features in the reference's order."""
        return self.input if self.order is None else self.input[:, self.order]

    def has_features(self, kind: str) -> bool:
        """Whether the first axis of a parameter is that of the input's features."""
        return kind == "kernel" if self.kind == "dense" else len(self.weights[kind]) == self.input.shape[-1]

    @property
    def output_in_order(self) -> Array | None:
        """The output with its features in the reference's order; a dense layer's are others than its input's."""
        if self.order is None or self.output is None or self.kind == "dense":
            return self.output
        return self.output[:, self.order]

    def is_like(self, other: "Call") -> bool:
        """Whether kind and shapes are the same, but for a bias that one of them lacks."""
        kernel = self.shapes.get("kernel")
        same_kernel = kernel is not None and kernel == other.shapes.get("kernel")
        return self.kind == other.kind and (self.shapes == other.shapes or same_kernel)


@dataclass(frozen=True)
class Dropout:
    """One use of dropout that drops.

    Attributes:
      after: the name of the last layer that has ended before.
      values: what it gets, sorted, since frameworks lay out features differently; None inside of an attention layer.
    """

    rate: float
    after: str
    values: Array | None = field(default=None, repr=False)

    def is_like(self, other: "Dropout") -> bool:
        """Whether both have the same effect: a ReLU may as well follow as precede."""
        if self.rate != other.rate or self.values is None or other.values is None:
            return self.rate == other.rate and self.values is other.values
        positive = [np.maximum(values, 0) for values in (self.values, other.values)]
        is_relu = self.values[0] >= 0 or other.values[0] >= 0
        return difference(self.values, other.values) <= SAME or (is_relu and difference(*positive) <= SAME)


class Trace:
    """The calls of one pass, in the order of execution; in a port's first pass, paired with the reference's.

    Attributes:
      calls: of this network.
      dropouts: of this network.
      pairs: number of a call -> number of the reference's call; only in a port's first pass.
      ways: for each call whose counterpart could not be told by input and name, how many there were to choose from.
      grids: (height, width, channels) of all features that were seen, which may have been flattened later.
    """

    def __init__(
        self,
        reference: "Trace | None" = None,
        names: Mapping[str, str] = NO_NAMES,
        choices: Sequence[int] = (),
        settled: Mapping[int, int] = EMPTY,
    ) -> None:
        """Args:
        names: of layers that the user has paired: the port's -> the reference's.
        choices: for each of `ways`, which counterpart to take; by default the first one.
        settled: pairs that are known from an earlier pass.
        """
        self.calls: list[Call] = []
        self.dropouts: list[Dropout] = []
        self.last = "the images"  # the name of the last layer that has ended
        self.pairs: dict[int, int] = {}
        self.ways: list[int] = []
        self.grids: set[tuple[int, ...]] = set()
        self.begun: list[int] = []  # numbers of calls that have not ended
        self.reference, self.names, self.choices, self.settled = reference, names, choices, settled

    def see(self, shape: Sequence[int]) -> None:
        """Takes note of features with this canonical shape (n, height, width, channels)."""
        if len(shape) == 4 and shape[1] * shape[2] > 1:
            self.grids.add(tuple(shape[1:]))

    def enter(self, layer: Layer, x: Array | None) -> None:
        """Before a layer is used, with the input `x`; None for OWN. Gives it its counterpart's weights."""
        call = Call.of(layer, x)
        number = len(self.calls)
        self.calls.append(call)
        self.begun += [] if layer.kind == OWN else [number]
        self.see(call.input.shape)
        if self.reference is None or (paired := self._counterpart(number, call)) is None:
            return
        self.pairs[number] = paired
        other = self.reference.calls[paired]
        _, call.order = self._fits(call, other)
        layer.set({**call.weights, **self.start(number)})

    def leave(self, output: Array) -> None:
        """After a layer was used that is not OWN."""
        call = self.calls[self.begun.pop()]
        call.output, self.last = output, call.layer
        self.see(output.shape)

    def drop(self, rate: float, x: Array | None = None) -> None:
        """Dropout is used, with the input `x`, which it leaves as it is."""
        if rate:
            self.dropouts.append(Dropout(rate, self.last, None if x is None else np.sort(x, axis=None)))

    def start(self, number: int) -> Weights:
        """The weights of the reference for a call that is paired, as far as its layer has them."""
        assert self.reference
        call, theirs = self.calls[number], self.reference.calls[self.pairs[number]].weights
        return {kind: self.to_port(call, kind, theirs[kind]) for kind in call.weights if kind in theirs}

    def _counterpart(self, number: int, call: Call) -> int | None:
        """The reference's free call of the same layer, input or name; None if there is none."""
        assert self.reference
        if number in self.settled:
            return self.settled[number]
        theirs = self.reference.calls
        if name := self.names.get(call.layer):
            return next((n for n, other in self._free() if other.layer == name), None)
        for earlier, paired in self.pairs.items():
            if self.calls[earlier].layer == call.layer:  # a layer that is used again has one counterpart
                name = theirs[paired].layer
                return next((n for n, other in self._free() if other.layer == name), None)
        used = {theirs[paired].layer for paired in self.pairs.values()} | set(self.names.values())
        alike = [(n, other) for n, other in self._free() if other.layer not in used and other.is_like(call)]
        fed = [n for n, other in alike if self._fits(call, other)[0]]
        if named := [n for n, other in alike if plain(other.layer) == plain(call.layer) and (n in fed or not fed)]:
            return named[0]
        if len(fed) > 1:  # branches from the same features
            way = self.choices[len(self.ways)] if len(self.ways) < len(self.choices) else 0
            self.ways.append(len(fed))
            return fed[way]
        return fed[0] if fed else None

    def _free(self) -> Iterator[tuple[int, Call]]:
        """The reference's calls that have no counterpart yet, with their numbers."""
        assert self.reference
        paired = set(self.pairs.values())
        return ((n, other) for n, other in enumerate(self.reference.calls) if n not in paired)

    def settle(self) -> dict[int, int]:
        """All pairs; what is left over on both sides is paired by kind and shapes, in the order of execution."""
        for number, call in enumerate(self.calls):
            if number not in self.pairs:
                other = next((n for n, other in self._free() if other.is_like(call)), None)
                self.pairs |= {} if other is None else {number: other}
        return self.pairs

    def _fits(self, call: Call, other: Call) -> tuple[bool, Array | None]:
        """Whether both calls have the same input, and how the call's must be reordered for that."""
        if difference(call.input, other.input) <= SAME:
            return True, None
        if call.input.ndim == 2 and call.input.shape == other.input.shape:
            assert self.reference
            for order in flat_orders(call.input.shape[1], self.grids | self.reference.grids):
                if difference(call.input[:, order], other.input) <= SAME:
                    return True, order
        return False, None

    def to_port(self, call: Call, kind: str, array: Array) -> Array:
        """The reference's array of a parameter, with the features of the call's input in the port's order."""
        return array[np.argsort(call.order)] if call.order is not None and call.has_features(kind) else array

    def from_port(self, call: Call, kind: str, array: Array) -> Array:
        """`to_port` backwards."""
        return array[call.order] if call.order is not None and call.has_features(kind) else array


def flat_orders(size: int, grids: set[tuple[int, ...]]) -> Iterator[Array]:
    """The two ways to reorder features that were flattened: channel first to channel last, and back."""
    for height, width, channels in sorted(grids):
        if height * width * channels == size:
            numbers = np.arange(size)
            yield numbers.reshape(channels, height, width).transpose(1, 2, 0).ravel()
            yield numbers.reshape(height, width, channels).transpose(2, 0, 1).ravel()


def difference(array: Array | None, other: Array | None) -> float:
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


def plain(name: str) -> str:
    """A layer's name without what frameworks write differently: `layer1.0.conv1` and `layer1_0_conv1`."""
    return name.lower().replace(".", "_").replace("/", "_")
