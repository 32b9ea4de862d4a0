"""The first place where a port departs from the reference, and its cause where that is known."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from port.explain import NamedArray, explain
from port.layers import NEW_SHARE, OWN_PARAMETER, STATISTICS, Array
from port.match import SAME_WITHIN, Dropout, LayerCall, array_difference
from port.network import Probe
from port.run import PortResult

UNLIKE_SPREADS = 1.25  # factor between standard deviations of initial weights that is told

# What is known of the frameworks' defaults: (kind of layer, setting), or a function that `explain` finds.
DIFFERENT_DEFAULTS = {
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
class CallPair:
    """A call of the port and its counterpart.

    Attributes:
      number: of the port's call.
      largest_gradient: of the reference.
    """

    number: int
    mine: LayerCall
    theirs: LayerCall
    largest_gradient: float

    @cached_property
    def output(self) -> float:
        """The difference of the outputs."""
        mine = self.mine.in_order(self.mine.output)
        return 0.0 if self.mine.kind == OWN_PARAMETER else array_difference(mine, self.theirs.output)

    @cached_property
    def inputs(self) -> tuple[Array, Array]:
        """The reference's and the port's; without the zeros that one pads before a convolution, and the other in it."""
        inputs = self.theirs.input, self.mine.input_in_order
        paddings = padding_of(self.theirs), padding_of(self.mine)
        if inputs[0].shape == inputs[1].shape or not all(paddings):
            return inputs
        most = np.maximum(*paddings)
        bare = []
        for x, padding in zip(inputs, paddings, strict=True):
            padded = np.pad(x, ((0, 0), *padding, (0, 0)))
            bare.append(padded[:, *(slice(before, -after or None) for before, after in most)])
            if not np.array_equal(np.pad(bare[-1], ((0, 0), *most, (0, 0))), padded):
                return inputs
        return bare[0], bare[1]

    @cached_property
    def input(self) -> float:
        """The difference of the inputs."""
        return array_difference(*self.inputs)

    @cached_property
    def gradient(self) -> float:
        """The largest difference, relative to the largest gradient of the network; what is not trained has none."""
        mine, theirs = self.mine.gradients, self.theirs.gradients
        kinds = (mine.keys() | theirs.keys()) & self.mine.weights.keys() & self.theirs.weights.keys()
        apart = (np.abs(mine.get(kind, 0) - theirs.get(kind, 0)).max(initial=0.0) for kind in kinds)
        return float(max(apart, default=0.0)) / self.largest_gradient

    @property
    def running(self) -> float:
        """The largest difference of running statistics."""
        mine, theirs = self.mine.statistics, self.theirs.statistics
        return max((array_difference(mine[kind], theirs[kind]) for kind in mine.keys() & theirs.keys()), default=0.0)


@dataclass(frozen=True)
class Departure:
    """Attributes:
    place: `at` a layer, or `between` two layers.
    cause: what differs there; None if it is not known.
    """

    place: str
    cause: str | None = None


class PortComparison:
    """A port beside the reference; `here` and `there` are the names of their files."""

    def __init__(self, reference: PortResult, port: PortResult, here: str, there: str, probe: Probe) -> None:
        self.reference, self.port, self.here, self.there, self.probe = reference, port, here, there, probe
        every = [array for call in reference.calls for array in call.gradients.values()]
        largest = max((float(np.abs(array).max(initial=0.0)) for array in every), default=0.0) or 1.0
        self.pairs = {
            number: CallPair(number, port.calls[number], reference.calls[paired], largest)
            for number, paired in port.pairs.items()
        }
        paired = set(port.pairs.values())
        self.left_over = [call for number, call in enumerate(reference.calls) if number not in paired]

    @cached_property
    def departure(self) -> Departure | None:
        """None if the port is the same network."""
        searches = (
            *(self.in_shape, self.in_layers, self.behind_the_last),
            *(self.in_dropout, self.in_gradients, self.in_evaluation),
        )
        return next((found for search in searches if (found := search())), None)

    def both(self, theirs: object, mine: object) -> str:
        """What the reference and the port have."""
        return f"{theirs} in {self.here}, {mine} in {self.there}"

    def in_shape(self) -> Departure | None:
        """Numbers of classes that differ, for example."""
        theirs, mine = self.reference.output.shape, self.port.output.shape
        return Departure("in the output's shape", self.both(theirs, mine)) if mine != theirs else None

    @cached_property
    def output(self) -> float:
        """The difference of the networks' outputs."""
        return array_difference(self.port.output, self.reference.output)

    @cached_property
    def ends_agree(self) -> bool:
        """Whether output and gradients do. Then no layer departs, though one may pad or crop what another does not."""
        return self.output <= SAME_WITHIN and all(pair.gradient <= SAME_WITHIN for pair in self.pairs.values())

    def in_layers(self) -> Departure | None:
        """The first call of the port that departs, or that has no counterpart."""
        for number, call in enumerate(self.port.calls):
            if number not in self.pairs:
                place = f"at {self.there}'s {call_text(call)}, which has no counterpart in {self.here}"
                left = sorted(self.left_over, key=lambda other: other.kind != call.kind)  # the same kind first
                return Departure(place, f"{self.here} still has {call_text(left[0])}" if left else None)
            pair = self.pairs[number]
            if missing := sorted(pair.mine.weights.keys() ^ pair.theirs.weights.keys()):
                owner = self.there if missing[0] in call.weights else self.here
                return Departure(f"at {self.name(pair)}", f"only {owner} has a {' and a '.join(missing)} there")
            if pair.output > SAME_WITHIN and not self.ends_agree:
                return self.at(pair)
            if pair.mine.settings.get("epsilon") != pair.theirs.settings.get("epsilon"):  # which may be hardly seen
                return Departure(f"at {self.name(pair)}", self.different_settings(pair))
        if self.left_over:
            return Departure(
                f"at {self.here}'s {call_text(self.left_over[0])}, which has no counterpart in {self.there}"
            )
        return None

    def at(self, pair: CallPair) -> Departure:
        """Whether the layer itself departs, or what goes into it."""
        if pair.input <= SAME_WITHIN:
            pads_outside = pair.mine.input_in_order.shape != pair.theirs.input.shape
            return Departure(f"at {self.name(pair)}", self.different_settings(pair, "padding" if pads_outside else ""))
        known = self.known_before(pair.number)
        cause = self.two_ways(known, *pair.inputs)
        return Departure(f"between {known[-1][0]} and {self.name(pair)}", cause)

    def two_ways(self, known: list[NamedArray], theirs: Array, mine: Array) -> str | None:
        """What makes either value of earlier ones."""
        here, there = explain(theirs, known), explain(mine, known)
        if here == there:
            return None
        text = f"{self.here} has {here or 'something else'}, {self.there} {there or 'something else'}"
        remarks = [f" ({remark})" for words, remark in KNOWN_FUNCTIONS.items() if all(word in text for word in words)]
        return text + "".join(remarks[:1])

    def known_before(self, number: int) -> list[NamedArray]:
        """Values before a call of the port that agree, the latest last."""
        known = [("the images", self.probe.images)]
        for pair in self.pairs.values():
            if pair.number < number and pair.input <= SAME_WITHIN and pair.theirs.kind != OWN_PARAMETER:
                known.append((f"input of {pair.theirs.layer}", pair.inputs[0]))
            if pair.number < number and pair.output <= SAME_WITHIN and pair.theirs.output is not None:
                known.append((pair.theirs.layer, pair.theirs.output))
        return known

    def different_settings(self, pair: CallPair, but: str = "") -> str | None:
        mine, theirs = comparable_settings(pair.mine), comparable_settings(pair.theirs)
        texts = []
        for name in mine:
            if name != but and name in theirs and mine[name] != theirs[name]:
                default = DIFFERENT_DEFAULTS.get((pair.mine.kind, name))
                if name == "padding" and set(mine["strides"]) == {1}:
                    default = None
                texts.append(f"{name}: {self.both(theirs[name], mine[name])}" + (f" ({default})" if default else ""))
        return "; ".join(texts) or None

    def behind_the_last(self) -> Departure | None:
        if self.output > SAME_WITHIN:
            known = self.known_before(len(self.port.calls))
            cause = self.two_ways(known, self.reference.output, self.port.output)
            return Departure(f"after {known[-1][0]}, the last layer", cause)
        if self.port.has_loss != self.reference.has_loss:
            own, other = (self.there, self.here) if self.port.has_loss else (self.here, self.there)
            return Departure("in the loss", f"{own} has a function loss, {other} takes the cross-entropy")
        if not math.isclose(self.port.loss, self.reference.loss, rel_tol=SAME_WITHIN):
            return Departure("in the loss", self.both(f"{self.reference.loss:.8g}", f"{self.port.loss:.8g}"))
        return None

    def in_dropout(self) -> Departure | None:
        for where, here, there in (
            ("in dropout", self.reference.dropouts, self.port.dropouts),
            ("in dropout in evaluation", self.reference.eval_dropouts, self.port.eval_dropouts),
        ):
            alone = without_counterpart(here, there)
            if any(alone):
                uses = [", ".join(f"{use.rate:g} after {use.after}" for use in of_file) or "none" for of_file in alone]
                return Departure(where, self.both(*uses))
        return None

    def in_gradients(self) -> Departure | None:
        """The last layer whose gradients differ, since they are computed from the end."""
        for pair in reversed(self.pairs.values()):
            if pair.gradient > SAME_WITHIN:
                place = f"in the gradients of {self.name(pair)}, while all outputs agree"
                for file, call in ((self.there, pair.mine), (self.here, pair.theirs)):
                    if not any(array.any() for array in call.gradients.values()):
                        return Departure(place, f"it is not trained in {file}")
                return Departure(place)
        if not math.isclose(self.port.loss_after, self.reference.loss_after, rel_tol=SAME_WITHIN):
            return Departure("in the loss after one update")
        return None

    def in_evaluation(self) -> Departure | None:
        for pair in self.pairs.values():
            if pair.running > SAME_WITHIN:
                return Departure(f"in the running statistics of {self.name(pair)}", self.different_settings(pair))
        for pair in self.pairs.values():
            apart = array_difference(pair.mine.eval_output, pair.theirs.eval_output)
            if pair.mine.kind != OWN_PARAMETER and SAME_WITHIN < apart < math.inf:
                return Departure(f"at {self.name(pair)}, in evaluation")
        if array_difference(self.port.eval_output, self.reference.eval_output) > SAME_WITHIN:
            return Departure("after the last layer, in evaluation")
        return None

    def name(self, pair: CallPair) -> str:
        return f"{pair.theirs.layer} ({pair.mine.layer} in {self.there})"

    # --- What is told ---

    def lines(self) -> list[str]:
        """The answer, then remarks if it is the same network."""
        if self.departure is not None:
            cause = self.departure.cause or "the check does not know the cause; compare what both files do there"
            return [f"{self.there} departs {self.departure.place}: {cause}."]
        losses = "their own losses, " if self.port.has_loss else ""
        agree = f"{losses}gradients, an update and evaluation agree"
        answer = f"{self.there} is the network of {self.here}: its outputs differ by {self.output:.0e}; {agree}."
        return [answer, *self.remarks()]

    def remarks(self) -> Iterator[str]:
        if self.port.biased != self.reference.biased and any(call.statistics for call in self.port.calls):
            yield (
                "Running variances differ by the factor n / (n - 1), with n values in a channel of a batch: PyTorch"
                " stores the unbiased variance, Keras and Flax the biased one. No option changes this. Only evaluation"
                " uses them."
            )
        unlike: list[tuple[float, str]] = []
        for pair in self.pairs.values():
            mine, theirs = self.port.initial[pair.mine.layer], self.reference.initial[pair.theirs.layer]
            for kind in mine.keys() & theirs.keys():
                own, other = float(mine[kind].std()), float(theirs[kind].std())
                low, high = sorted((own, other))
                if low * UNLIKE_SPREADS < high:
                    values = self.both(f"{other:.2g}", f"{own:.2g}")
                    unlike.append((high / max(low, 1e-9), f"the {kind} of {pair.theirs.layer} most ({values})"))
        if unlike:
            yield (
                f"Initial weights have other standard deviations in {len(unlike)} parameters,"
                f" {max(unlike)[1]}. By default PyTorch draws kernels and biases from U(-1 / sqrt(fan_in),"
                " 1 / sqrt(fan_in)); Keras draws kernels from Glorot's uniform distribution and Flax from LeCun's"
                " normal one, and both start biases at zero. The check gives all files the same weights."
            )

    def rows(self) -> Iterator[Sequence[str]]:
        """For a table: layer here and there, kind, differences of output and gradient, verdict; in the port's order."""
        outputs_agree = self.output <= SAME_WITHIN
        for number, call in enumerate(self.port.calls):
            if (pair := self.pairs.get(number)) is None:
                yield "-", call.layer, call.kind, "", "", "no counterpart"
                continue
            # Gradients of all layers depart where one output does.
            gradient = f"{pair.gradient:.0e}" if outputs_agree else ""
            largest = max(pair.output, pair.gradient) if outputs_agree else pair.output
            output = "shape" if math.isinf(pair.output) else f"{pair.output:.0e}"
            verdict = "same" if largest <= SAME_WITHIN else "departs"
            yield pair.theirs.layer, call.layer, call.kind, output, gradient, verdict
        for call in self.left_over:
            yield call.layer, "-", call.kind, "", "", "no counterpart"


def call_text(call: LayerCall) -> str:
    """`conv1 (conv; kernel 3 x 3 x 1 x 8, bias 8)`."""
    shapes = [f"{kind} {' x '.join(map(str, of))}" for kind, of in call.shapes.items() if kind not in STATISTICS]
    return f"{call.layer} ({call.kind}; {', '.join(shapes)})"


def comparable_settings(call: LayerCall) -> dict[str, Any]:
    """The settings of a layer, with a convolution's padding as numbers of zeros (before, after) for each axis."""
    padding: Any = call.settings.get("padding")
    if call.kind != "conv" or str(padding).lower() in ("circular", "causal", "reflect"):
        return call.settings
    axes = call.weights["kernel"].ndim - 2
    if isinstance(padding, str):
        settings = call.settings["strides"], call.settings["dilation"]
        each = zip(call.input.shape[1:], call.weights["kernel"].shape[:axes], *settings, strict=False)
        padding = [padding_zeros(*of_axis) if padding.lower() == "same" else 0 for of_axis in each]
    elif isinstance(padding, int):
        padding = (padding,) * axes
    return {**call.settings, "padding": tuple(pad if isinstance(pad, tuple) else (pad, pad) for pad in padding)}


def padding_of(call: LayerCall) -> Any:
    """Of a convolution that pads with zeros: how many before and after, for each axis; None for any other layer."""
    padding = comparable_settings(call).get("padding")
    return padding if call.kind == "conv" and isinstance(padding, tuple) else None


def padding_zeros(length: int, size: int, stride: int, dilation: int) -> tuple[int, int]:
    """Of "same": as many as the rounded-up number of positions needs, the odd one after."""
    total = max((math.ceil(length / stride) - 1) * stride + dilation * (size - 1) + 1 - length, 0)
    return total // 2, total - total // 2


def without_counterpart(here: Sequence[Dropout], there: Sequence[Dropout]) -> tuple[list[Dropout], list[Dropout]]:
    """The uses of dropout on either side that the other one lacks."""
    alone, left = [], list(there)
    for dropout in here:
        if like := next((other for other in left if dropout.is_like(other)), None):
            left.remove(like)
        else:
            alone.append(dropout)
    return alone, left
