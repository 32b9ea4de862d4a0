"""The first place where a port departs from the reference, and its cause where that is known."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from port.explain import Named, explain
from port.match import NEW_SHARE, OWN, SAME, Array, Call, Dropout, Weights, difference
from port.run import STATISTICS, Batch, Result

UNLIKE_SPREADS = 1.25  # factor between standard deviations of initial weights that is told

# What is known of the frameworks' defaults: (kind of layer, setting), or a function that `explain` finds.
DEFAULTS = {
    ("batch norm", "epsilon"): "default: 1e-5 in PyTorch and Flax, 0.001 in Keras",
    ("batch norm", NEW_SHARE): (
        "default: momentum=0.1 in PyTorch, which Keras and Flax call momentum=0.9; 0.99 in Keras and Flax"
    ),
    ("layer norm", "epsilon"): "default: 1e-5 in PyTorch, 0.001 in Keras, 1e-6 in Flax",
    ("group norm", "epsilon"): "default: 1e-5 in PyTorch, 0.001 in Keras, 1e-6 in Flax",
    ("conv", "padding"): (
        'zeros before and after; with strides, "same" of Keras and Flax has more after, PyTorch\'s padding=1 one on'
        " each side: ZeroPadding2D(1) before a convolution with padding valid, or padding=1 in Flax"
    ),
}
KNOWN_FUNCTIONS = {
    ("gelu (exact)", "gelu (tanh"): "default: exact in PyTorch and Keras, approximate in jax.nn.gelu",
    ("leaky relu",): "default: 0.01 in PyTorch and Flax, 0.3 in Keras's layer, 0.2 in its function",
    ("padding counted", "padding not counted"): "default: counted in PyTorch and Flax, not counted in Keras",
    ("softmax",): "a loss of logits applies softmax itself",
    ("channels first", "channels last"): "PyTorch flattens channels first, Keras and Flax last",
}


@dataclass(frozen=True)
class Pair:
    """A call of the port and its counterpart; `number` and `paired` count the calls of either side."""

    number: int
    paired: int
    mine: Call
    theirs: Call
    largest_gradient: float
    gradients: tuple[Weights, Weights]
    statistics: tuple[Weights, Weights]

    @cached_property
    def output(self) -> float:
        return 0.0 if self.mine.kind == OWN else difference(self.mine.output_in_order, self.theirs.output)

    @cached_property
    def input(self) -> float:
        return difference(self.mine.input_in_order, self.theirs.input)

    @cached_property
    def gradient(self) -> float:
        """The largest difference, relative to the largest gradient of the network; what is not trained has none."""
        mine, theirs = self.gradients
        kinds = (mine.keys() | theirs.keys()) & self.mine.weights.keys() & self.theirs.weights.keys()
        apart = (np.abs(mine.get(kind, 0) - theirs.get(kind, 0)).max(initial=0.0) for kind in kinds)
        return float(max(apart, default=0.0)) / self.largest_gradient

    @cached_property
    def running(self) -> float:
        """The largest difference of running statistics."""
        mine, theirs = self.statistics
        return max((difference(mine[kind], theirs[kind]) for kind in mine.keys() & theirs.keys()), default=0.0)

    @cached_property
    def only_biased(self) -> bool:
        """Whether the running variances differ by the divisor alone, n or n - 1."""
        mine, theirs = self.statistics
        share = self.theirs.settings.get(NEW_SHARE)
        if self.running <= SAME or share is None or share != self.mine.settings.get(NEW_SHARE):
            return False
        old = (1 - share) * self.theirs.weights["variance"]
        count = self.theirs.input[..., 0].size
        new = mine["variance"] - old, theirs["variance"] - old
        ratios = difference(new[0] * count, new[1] * (count - 1)), difference(new[0] * (count - 1), new[1] * count)
        return difference(mine["mean"], theirs["mean"]) <= SAME and min(ratios) <= 1e3 * SAME

    @property
    def missing(self) -> list[str]:
        """Kinds of parameters that only one of the two has."""
        return sorted(self.mine.weights.keys() ^ self.theirs.weights.keys())


@dataclass(frozen=True)
class Departure:
    """Attributes:
    place: `at` a layer, or `between` two layers.
    cause: what differs there; None if it is not known.
    """

    place: str
    cause: str | None = None


class Comparison:
    """A port beside the reference; `here` and `there` are the names of their files."""

    def __init__(self, reference: Result, port: Result, here: str, there: str, batch: Batch) -> None:
        self.reference, self.port, self.here, self.there, self.batch = reference, port, here, there, batch
        every = [array for weights in reference.gradients.values() for array in weights.values()]
        largest = max((float(np.abs(array).max(initial=0.0)) for array in every), default=0.0) or 1.0
        self.pairs = {
            number: Pair(
                number,
                paired,
                port.trace.calls[number],
                reference.trace.calls[paired],
                largest,
                (port.gradients[number], reference.gradients[paired]),
                (port.statistics[number], reference.statistics[paired]),
            )
            for number, paired in port.trace.pairs.items()
        }

    @property
    def alone(self) -> tuple[list[Call], list[Call]]:
        """Calls without a counterpart: of the reference, of the port."""
        paired = {pair.paired for pair in self.pairs.values()}
        theirs = [call for number, call in enumerate(self.reference.trace.calls) if number not in paired]
        return theirs, [call for number, call in enumerate(self.port.trace.calls) if number not in self.pairs]

    @cached_property
    def departure(self) -> Departure | None:
        """None if the port is the same network."""
        searches = (
            *(self.in_shape, self.in_layers, self.behind_the_last),
            *(self.in_dropout, self.in_gradients, self.in_evaluation),
        )
        return next((found for search in searches if (found := search())), None)

    def in_shape(self) -> Departure | None:
        """Numbers of classes that differ, for example."""
        theirs, mine = self.reference.output.shape, self.port.output.shape
        return (
            None
            if mine == theirs
            else Departure("in the output's shape", f"{theirs} in {self.here}, {mine} in {self.there}")
        )

    @cached_property
    def output(self) -> float:
        """The difference of the networks' outputs."""
        return difference(self.port.output, self.reference.output)

    @cached_property
    def ends_agree(self) -> bool:
        """Whether output and gradients do. Then no layer departs, though one may pad or crop what another does not."""
        return self.output <= SAME and all(pair.gradient <= SAME for pair in self.pairs.values())

    def in_layers(self) -> Departure | None:
        """The first call of the port that departs, or that has no counterpart."""
        left_over, _ = self.alone
        for number, call in enumerate(self.port.trace.calls):
            if number not in self.pairs:
                alike = [other for other in left_over if other.kind == call.kind]
                own = [other for other in left_over if other.kind == OWN]
                cause = f"{self.here} still has {about((alike or own)[0])}" if alike or own else None
                if cause and not alike:
                    cause += ", of a class of its own, which the check can't pair with a layer"
                return Departure(f"at {self.there}'s {about(call)}, which has no counterpart in {self.here}", cause)
            pair = self.pairs[number]
            if pair.missing:
                owner = self.there if pair.missing[0] in call.weights else self.here
                return Departure(f"at {self.name(pair)}", f"only {owner} has a {' and a '.join(pair.missing)} there")
            if pair.output > SAME and not self.ends_agree:
                return self.at(pair)
            if pair.mine.settings.get("epsilon") != pair.theirs.settings.get("epsilon"):  # which may be hardly seen
                return Departure(f"at {self.name(pair)}", self.different_settings(pair))
        if left_over:
            return Departure(f"at {self.here}'s {about(left_over[0])}, which has no counterpart in {self.there}")
        return None

    def at(self, pair: Pair) -> Departure:
        """Whether the layer itself departs, or what goes into it."""
        if pair.input <= SAME:
            return Departure(f"at {self.name(pair)}", self.different_settings(pair))
        if difference(padded(pair.mine), padded(pair.theirs)) <= SAME:  # one pads outside of the layer
            return Departure(f"at {self.name(pair)}", self.different_settings(pair, "padding"))
        known = self.known_before(pair.number)
        cause = self.two_ways(known, pair.theirs.input, pair.mine.input_in_order)
        return Departure(f"between {known[-1][0]} and {self.name(pair)}", cause)

    def two_ways(self, known: list[Named], theirs: Array, mine: Array) -> str | None:
        """What makes either value of earlier ones."""
        here, there = explain(theirs, known), explain(mine, known)
        if here == there:
            return None
        texts = f"{self.here} has {here or 'something else'}, {self.there} {there or 'something else'}"
        about = [f" ({text})" for words, text in KNOWN_FUNCTIONS.items() if all(word in texts for word in words)]
        return texts + "".join(about[:1])

    def known_before(self, number: int) -> list[Named]:
        """Values before a call of the port that agree, the latest last."""
        known = [("the images", self.batch.images)]
        for pair in self.pairs.values():
            if pair.number < number and pair.input <= SAME and pair.theirs.kind != OWN:
                known.append((f"input of {pair.theirs.layer}", pair.theirs.input))
            if pair.number < number and pair.output <= SAME and pair.theirs.output is not None:
                known.append((pair.theirs.layer, pair.theirs.output))
        return known

    def different_settings(self, pair: Pair, *but: str) -> str | None:
        mine, theirs = comparable(pair.mine), comparable(pair.theirs)
        differing = [name for name in mine if name in theirs and name not in but and mine[name] != theirs[name]]
        texts = []
        for name in differing:
            default = DEFAULTS.get((pair.mine.kind, name))
            if name == "padding" and set(mine["strides"]) == {1}:
                default = None
            texts.append(f"{name}: {theirs[name]} in {self.here}, {mine[name]} in {self.there}")
            texts[-1] += f" ({default})" if default else ""
        return "; ".join(texts) or None

    def behind_the_last(self) -> Departure | None:
        if self.output > SAME:
            known = self.known_before(len(self.port.trace.calls))
            cause = self.two_ways(known, self.reference.output, self.port.output)
            return Departure(f"after {known[-1][0]}, the last layer", cause)
        if self.port.has_loss != self.reference.has_loss:
            own, other = (self.there, self.here) if self.port.has_loss else (self.here, self.there)
            return Departure("in the loss", f"{own} has a function loss, {other} takes the cross-entropy")
        if abs(self.port.loss - self.reference.loss) > SAME * abs(self.reference.loss):
            return Departure(
                "in the loss", f"{self.reference.loss:.8g} in {self.here}, {self.port.loss:.8g} in {self.there}"
            )
        return None

    def in_dropout(self) -> Departure | None:
        for where, here, there in (
            ("in dropout", self.reference.trace.dropouts, self.port.trace.dropouts),
            ("in dropout in evaluation", self.reference.eval_dropouts, self.port.eval_dropouts),
        ):
            alone = without_counterpart(here, there)
            if any(alone):
                uses = [", ".join(f"{use.rate:g} after {use.after}" for use in of_file) or "none" for of_file in alone]
                return Departure(where, f"{uses[0]} in {self.here}, {uses[1]} in {self.there}")
        return None

    def in_gradients(self) -> Departure | None:
        """The last layer whose gradients differ, since they are computed from the end."""
        for pair in reversed(self.pairs.values()):
            if pair.gradient > SAME:
                untrained = [
                    f"not trained in {file}"
                    for file, weights in zip((self.there, self.here), pair.gradients, strict=True)
                    if not any(array.any() for array in weights.values())
                ]
                place = f"in the gradients of {self.name(pair)}, while all outputs agree"
                return Departure(place, f"it is {untrained[0]}" if untrained else None)
        if abs(self.port.loss_after - self.reference.loss_after) > SAME * abs(self.reference.loss_after):
            return Departure("in the loss after one update")
        return None

    def in_evaluation(self) -> Departure | None:
        for pair in self.pairs.values():
            if pair.running > SAME and not pair.only_biased:
                return Departure(f"in the running statistics of {self.name(pair)}", self.different_settings(pair))
        for pair in self.pairs.values():
            outputs = self.port.eval_outputs[pair.number], self.reference.eval_outputs[pair.paired]
            if pair.mine.kind != OWN and SAME < difference(*outputs) < math.inf:
                return Departure(f"at {self.name(pair)}, in evaluation")
        if difference(self.port.eval_output, self.reference.eval_output) > SAME:
            return Departure("after the last layer, in evaluation")
        return None

    def name(self, pair: Pair) -> str:
        return f"{pair.theirs.layer} ({pair.mine.layer} in {self.there})"

    # --- What is told beside the answer ---

    def remarks(self) -> Iterator[str]:
        if any(pair.only_biased for pair in self.pairs.values()):
            yield (
                "Running variances differ by the factor n / (n - 1), with n values in a channel of a batch: PyTorch"
                " stores the unbiased variance, Keras and Flax the biased one. No option changes this. Only evaluation"
                " uses them."
            )
        unlike: list[tuple[float, str]] = []
        for pair in self.pairs.values():
            mine, theirs = self.port.initial[pair.mine.layer], self.reference.initial[pair.theirs.layer]
            for kind in mine.keys() & theirs.keys():
                own, other = (float(weights[kind].std()) for weights in (mine, theirs))
                low, high = sorted((own, other))
                if low * UNLIKE_SPREADS < high:
                    values = f"{other:.2g} in {self.here}, {own:.2g} in {self.there}"
                    unlike.append((high / max(low, 1e-9), f"the {kind} of {pair.theirs.layer} most ({values})"))
        if unlike:
            yield (
                f"Initial weights have other standard deviations in {len(unlike)} parameters,"
                f" {max(unlike)[1]}. By default PyTorch draws kernels and biases from U(-1 / sqrt(fan_in),"
                " 1 / sqrt(fan_in)); Keras draws kernels from Glorot's uniform distribution and Flax from LeCun's"
                " normal one, and both start biases at zero. The check gives all files the same weights."
            )


def about(call: Call) -> str:
    """`conv1 (conv; kernel 3 x 3 x 1 x 8, bias 8)`."""
    shapes = {kind: " x ".join(map(str, shape)) for kind, shape in call.shapes.items() if kind not in STATISTICS}
    return f"{call.layer} ({call.kind}; {', '.join(f'{kind} {shape}' for kind, shape in shapes.items())})"


def comparable(call: Call) -> dict[str, Any]:
    """The settings of a layer, with its padding as numbers of zeros (before, after) for each axis."""
    if call.kind != "conv" or (
        isinstance(call.settings["padding"], str) and call.settings["padding"].upper() not in ("SAME", "VALID")
    ):
        return call.settings
    sizes, lengths, padding = call.weights["kernel"].shape[:-2], call.input.shape[1:], call.settings["padding"]
    if isinstance(padding, int):
        padding = (padding,) * len(sizes)
    if isinstance(padding, str):
        padding = [
            zeros(*of_axis) if padding.upper() == "SAME" else 0
            for of_axis in zip(lengths, sizes, call.settings["strides"], call.settings["dilation"], strict=False)
        ]
    return {**call.settings, "padding": tuple(pad if isinstance(pad, tuple) else (pad, pad) for pad in padding)}


def padded(call: Call) -> Array:
    """The input as a convolution sees it; that of any other layer as it is."""
    padding = comparable(call).get("padding")
    if call.kind != "conv" or not isinstance(padding, tuple):
        return call.input
    return np.pad(call.input, ((0, 0), *padding, (0, 0)))


def zeros(length: int, size: int, stride: int, dilation: int) -> tuple[int, int]:
    """Of "same": as many as the rounded-up number of positions needs, the odd one after."""
    total = max((math.ceil(length / stride) - 1) * stride + dilation * (size - 1) + 1 - length, 0)
    return total // 2, total - total // 2


def lines_of(comparison: Comparison) -> list[str]:
    """The answer, then remarks if it is the same network."""
    here, there, departure = comparison.here, comparison.there, comparison.departure
    if departure is not None:
        cause = departure.cause or "the check does not know the cause; compare what both files do there"
        return [f"{there} departs {departure.place}: {cause}."]
    losses = "their own losses, " if comparison.port.has_loss else ""
    agree = f"{losses}gradients, an update and evaluation agree"
    answer = f"{there} is the network of {here}: its outputs differ by {comparison.output:.0e}; {agree}."
    return [answer, *comparison.remarks()]


def without_counterpart(here: Sequence[Dropout], there: Sequence[Dropout]) -> tuple[list[Dropout], list[Dropout]]:
    """The uses of dropout on either side that the other one lacks."""
    alone, left = [], list(there)
    for dropout in here:
        like = next((other for other in left if dropout.is_like(other)), None)
        if like is None:
            alone.append(dropout)
        left = [other for other in left if other is not like]
    return alone, left


def rows_of(comparison: Comparison) -> Iterator[Sequence[str]]:
    """For a table: layer here and there, kind, differences of output and gradient, verdict; in the port's order."""
    left_over, _ = comparison.alone
    outputs_agree = comparison.output <= SAME
    for number, call in enumerate(comparison.port.trace.calls):
        if (pair := comparison.pairs.get(number)) is None:
            yield "-", call.layer, call.kind, "", "", "no counterpart"
            continue
        # Gradients of all layers depart where one output does.
        gradient = f"{pair.gradient:.0e}" if outputs_agree else ""
        verdict = "same" if (max(pair.output, pair.gradient) if outputs_agree else pair.output) <= SAME else "departs"
        output = "shape" if math.isinf(pair.output) else f"{pair.output:.0e}"
        yield pair.theirs.layer, call.layer, call.kind, output, gradient, verdict
    for call in left_over:
        yield call.layer, "-", call.kind, "", "", "no counterpart"
