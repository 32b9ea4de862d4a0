"""One framework's part of the check: the network's calls, gradients, an update and evaluation, on one batch.

    python -m port.pt FOLDER --batch FILE [--output FILE] [--reference FILE] [--seed S]

The files are this program's own: `check.py` starts one process for each framework, and reads what they have written.
Without --output, it answers requests, see `answer_requests`.
"""

import argparse
import itertools
import os
import pickle
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol

import numpy as np
import yaml
from pydantic import TypeAdapter, ValidationError

from common.platform.errors import UserError
from common.spec.networks import load_module
from port.match import NEW_SHARE, NO_NAMES, OWN, SAME, Array, Call, Dropout, Layer, Trace, Weights, difference

LEARNING_RATE = 0.1  # of the one update
STATISTICS = ("mean", "variance")  # parameters that are not trained
NAMES_FILE = "names.yaml"
Names = dict[Literal["pt", "tf", "jax"], dict[str, str]]  # port -> name of its layer -> name of the reference's
LONGEST_ERROR = 300  # characters that are shown
MOST_WAYS = 32  # assignments of branches that are tried


@dataclass(frozen=True)
class Batch:
    """What every network gets: images float64 (n, height, width, channels), labels int64 (n,), and the classes."""

    images: Array
    labels: Array
    num_classes: int


class Network(Protocol):
    """A network in its framework, in 64 bits, without dropout.

    Attributes:
      layers: those with parameters, by name.
      loss: from outputs and labels to the losses of the examples (n,).
      total: the sum of all numbers of an array of the framework's.
      biased: whether running variances divide by n, the number of values, and not by n - 1.
    """

    layers: Mapping[str, Layer]
    loss: Callable[[Any, Any], Any]
    total: Callable[[Any], Any]
    biased: bool

    def arrays(self) -> Weights:
        """All parameters, by the framework's names and in its layouts, as the implementations read them."""

    def forward(self, images: Array, trace: Trace, training: bool) -> Array:
        """The network's output (n, classes); tells `trace` of each call and of dropout, which drops nothing."""

    def gradients(self, images: Array, labels: Array) -> tuple[float, dict[str, Weights]]:
        """The mean loss in training, and the gradients of each layer."""

    def losses(self, outputs: Array, labels: Array) -> tuple[Array, Array]:
        """The losses (n,), and the gradients of their sum by the outputs."""


@dataclass
class Result:
    """What one framework has computed.

    All files get the same weights, those of the reference. They are drawn anew, since initial weights hide mistakes:
    what is multiplied by zero, or divided by one, can be anything.

    Attributes:
      trace: the calls of the first pass; in a port paired with the reference's.
      output: the network's, of the same pass.
      loss: the mean cross-entropy of that output, or the mean of what `loss` of the network's file returns.
      gradients: number of a call -> gradients of its parameters, with the reference's order of features.
      loss_after: after one update of plain gradient descent.
      statistics: number of a call -> running statistics after the first pass.
      eval_outputs, eval_output: of each call and of the network in evaluation, with the reference's statistics.
      eval_dropouts: dropout that drops in evaluation, too.
      initial: layer -> the file's own initial weights.
      shapes: canonical name of each parameter -> shape, see `common.spec.own_network`; those of the reference.
      places: where the file's framework keeps each canonical value, see `Layout` there; `places_in_layers`: the same
        for the parameters of `Network.layers`, by `layer.kind`.
      has_loss: whether the file has a loss of its own.
    """

    trace: Trace
    output: Array
    loss: float
    gradients: dict[int, Weights]
    loss_after: float
    statistics: dict[int, Weights]
    eval_outputs: list[Array | None]
    eval_output: Array
    eval_dropouts: list[Dropout]
    initial: dict[str, Weights]
    shapes: dict[str, tuple[int, ...]]
    places: dict[str, Array]
    places_in_layers: dict[str, Array]
    has_loss: bool = False


def main(make: Callable[[ModuleType, Batch, int], Network], file: str) -> None:
    """The program of one framework. `make`: makes the network from the user's module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batch", type=Path, required=True)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    # The files are this program's own.
    batch: Batch = pickle.loads(given.batch.read_bytes())  # noqa: S301
    reference: Result | None = pickle.loads(given.reference.read_bytes()) if given.reference else None  # noqa: S301
    path = given.folder / file
    try:
        module = load_module(path)
        if not callable(vars(module).get("make_network")):
            sys.exit(f"{file}: has no function make_network(image_shape, num_classes)")
        network = make(module, batch, given.seed)
        if given.output:
            names = read_names(given.folder / NAMES_FILE, file, network, reference) if reference else {}
            result = run(network, batch, reference, names)
            result.has_loss = "loss" in vars(module)
            given.output.write_bytes(pickle.dumps(result))
        else:
            answer_requests(network)
    except UserError as error:
        sys.exit(str(error))
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything; the line is told
        plain = re.sub(r"\x1b\[\d*m", "", str(error))  # Keras's have bold lines
        text = textwrap.shorten(plain, LONGEST_ERROR, placeholder=" ...")
        sys.exit(f"{where(error, path)}: {type(error).__name__}: {text}")


@dataclass(frozen=True)
class LossRequest:
    """The losses of an output (n, classes) are wanted, and the gradients of their sum by it."""

    output: Array
    labels: Array


@dataclass(frozen=True)
class PassRequest:
    """A pass of images through the network, in training or not.

    Attributes:
      weights: `layer.kind` -> what the layers of `Network.layers` have.
      gradient: of something by the output (n, classes); None: the output itself is wanted.
    """

    weights: Weights
    images: Array
    training: bool
    gradient: Array | None = None


def answer_requests(network: Network) -> None:
    """Reads pickled requests from standard input until it ends, and writes the answers to standard output."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the user's code prints is no answer
    with suppress(EOFError):
        while True:
            request = pickle.load(sys.stdin.buffer)  # noqa: S301 - this program's own
            pickle.dump(answer(network, request), answers)
            answers.flush()


def answer(network: Network, request: LossRequest | PassRequest) -> Any:
    """Losses and gradients (`Network.losses`); the output of a pass; or what it passes back, see `passed_back`."""
    if isinstance(request, LossRequest):
        return network.losses(request.output, request.labels)
    for name, layer in network.layers.items():
        layer.set({kind: request.weights.get(f"{name}.{kind}", array) for kind, array in layer.get().items()})
    trace = Trace()
    output = network.forward(request.images, trace, request.training)
    return output if request.gradient is None else passed_back(network, trace, request, request.gradient)


def passed_back(network: Network, trace: Trace, request: PassRequest, gradient: Array) -> Weights:
    """`layer.kind` -> the gradients of what is trained, and the running statistics, whose variances are unbiased.

    `trace` is of the request's forward pass, which has moved the statistics.
    """
    statistics = {name: array for name, array in in_layers(network).items() if name.endswith(STATISTICS)}
    for call in trace.calls if network.biased else ():
        if (name := f"{call.layer}.variance") in statistics and "mean" in call.weights:
            kept, count = 1 - call.settings[NEW_SHARE], call.input[..., 0].size
            new = statistics[name] - kept * request.weights[name]
            statistics[name] = statistics[name] + new / max(1, count - 1)
    # `gradients`, given a gradient by the outputs in place of labels, passes it back.
    loss, network.loss = network.loss, lambda outputs, by_outputs: network.total(outputs * by_outputs)
    _, gradients = network.gradients(request.images, gradient)
    network.loss = loss
    of_layers = ((f"{name}.{kind}", array) for name, of in gradients.items() for kind, array in of.items())
    return dict(of_layers) | statistics


def read_names(path: Path, file: str, network: Network, reference: Result) -> dict[str, str]:
    """The layers of `file` that the user has paired with the reference's; most folders pair none.

    Raises UserError if the table has another form, if there is no layer of a name, or if two layers are unlike.
    """
    try:
        names = TypeAdapter(Names).validate_python(yaml.safe_load(path.read_text()) if path.exists() else {})
    except (ValidationError, yaml.YAMLError):
        raise UserError(f"{path}: should have lines such as `tf: {{dense_1: head}}`, for pt, tf or jax") from None
    pairs = {name: other for port, of_port in names.items() if f"{port}.py" == file for name, other in of_port.items()}
    for name, has, layers in (
        *((name, file, set(network.layers)) for name in pairs),
        *((name, "the reference", {call.layer for call in reference.trace.calls}) for name in pairs.values()),
    ):
        if name not in layers:
            raise UserError(f"{path}: {has} has no layer {name}, only {', '.join(sorted(layers))}")
    for name, other in pairs.items():
        mine, call = Call.of(network.layers[name]), next(call for call in reference.trace.calls if call.layer == other)
        if not mine.is_like(call):
            raise UserError(f"{path}: {name} is {mine.kind} with {mine.shapes}, {other} {call.kind} with {call.shapes}")
    return pairs


def where(error: Exception, path: Path) -> str:
    """The last line of the user's folder that the error has passed: `pt.py, line 12`."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).parent == path.parent]
    return f"{Path(own[-1].filename).name}, line {own[-1].lineno}" if own else path.name


def run(network: Network, batch: Batch, reference: Result | None, names: Mapping[str, str] = NO_NAMES) -> Result:
    """All that is compared; each step begins with the reference's weights."""
    images, labels = batch.images, batch.labels
    initial = {name: layer.get() for name, layer in network.layers.items()}
    if reference is None:
        draw_weights(network)
    trace, output = best_pass(network, images, reference.trace if reference else None, names)
    first: dict[str, Weights] = {}  # weights of each layer before the first step
    for number, call in enumerate(trace.calls):
        start = trace.start(number) if number in trace.pairs else {}
        first.setdefault(call.layer, {**call.weights, **start})
    statistics = {
        number: {
            kind: trace.from_port(call, kind, array)
            for kind, array in network.layers[call.layer].get().items()
            if kind in STATISTICS
        }
        for number, call in enumerate(trace.calls)
    }

    set_all(network, first)
    loss, by_layer = network.gradients(images, labels)
    gradients = {
        number: {kind: trace.from_port(call, kind, array) for kind, array in by_layer.get(call.layer, {}).items()}
        for number, call in enumerate(trace.calls)
    }
    moved = {
        layer: {
            kind: array - LEARNING_RATE * by_layer[layer][kind] if kind in by_layer.get(layer, {}) else array
            for kind, array in weights.items()
        }
        for layer, weights in first.items()
    }
    set_all(network, moved)
    loss_after, _ = network.gradients(images, labels)

    for number, call in enumerate(trace.calls):
        of_reference = reference.statistics[trace.pairs[number]] if reference and number in trace.pairs else {}
        source = {**statistics[number], **of_reference}
        running = {kind: trace.to_port(call, kind, source[kind]) for kind in statistics[number]}
        network.layers[call.layer].set({**first[call.layer], **running})
    trace.reference = None  # its file is large
    evaluation = Trace()
    eval_output = network.forward(images, evaluation, training=False)
    return Result(
        trace,
        output,
        loss,
        gradients,
        loss_after,
        statistics,
        evaluated(trace.calls, evaluation.calls),
        eval_output,
        evaluation.dropouts,
        initial,
        reference.shapes if reference else shapes_of(trace),
        *find_places(network, trace, reference.trace if reference else trace),
    )


def shapes_of(trace: Trace) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape, in the order of execution."""
    return {f"{call.layer}.{kind}": array.shape for call in trace.calls for kind, array in call.weights.items()}


def find_places(network: Network, trace: Trace, reference: Trace) -> tuple[dict[str, Array], dict[str, Array]]:
    """Sets the layers to the numbers of canonical values, and reads where they have gone: in arrays and in layers."""
    numbers: dict[str, Weights] = {}  # by the layers of the reference
    start = 0
    for name, shape in shapes_of(reference).items():
        of_layer, _, kind = name.rpartition(".")
        stop = start + int(np.prod(shape))
        numbers.setdefault(of_layer, {})[kind] = np.arange(start, stop, dtype=float).reshape(shape)
        start = stop
    for layer in network.layers.values():
        layer.set({kind: np.full(array.shape, -1.0) for kind, array in layer.get().items()})  # it may be unused
    for number, call in enumerate(trace.calls):
        if (paired := trace.pairs.get(number, number if trace is reference else None)) is not None:
            theirs = numbers[reference.calls[paired].layer]
            of_port = {kind: trace.to_port(call, kind, theirs[kind]) for kind in call.weights if kind in theirs}
            network.layers[call.layer].set({**call.weights, **of_port})
    found = (network.arrays(), in_layers(network))
    arrays, layers = (
        {name: np.rint(array).astype(np.int64) for name, array in of.items() if (array >= 0).all()} for of in found
    )
    return arrays, layers


def in_layers(network: Network) -> Weights:
    """`layer.kind` of every parameter -> its value."""
    return {f"{name}.{kind}": array for name, layer in network.layers.items() for kind, array in layer.get().items()}


def evaluated(calls: Sequence[Call], again: Sequence[Call]) -> list[Array | None]:
    """The outputs of the same calls in evaluation, with the order of the first pass; None if a layer is not used."""
    left = list(again)
    outputs: list[Array | None] = []
    for call in calls:
        same = next((other for other in left if other.layer == call.layer), None)
        if same:
            left = [other for other in left if other is not same]
            same.order = call.order
        outputs.append(same.output_in_order if same else None)
    return outputs


def best_pass(
    network: Network, images: Array, reference: Trace | None, names: Mapping[str, str]
) -> tuple[Trace, Array]:
    """The first pass in training. Of the ways to assign branches that look alike, that in which most calls agree."""
    best = Trace(reference, names)
    output = network.forward(images, best, training=True)
    if reference is None:
        return best, output
    for choices in itertools.islice(itertools.product(*map(range, best.ways)), 1, MOST_WAYS):
        if agreeing(best, reference) == len(reference.calls):
            break
        tried = Trace(reference, names, choices)
        network.forward(images, tried, training=True)
        best = max(best, tried, key=lambda trace: agreeing(trace, reference))
    if len(best.pairs) == len(best.calls) and not best.ways:  # nothing was left to settle
        return best, output
    trace = Trace(reference, names, settled=best.settle())
    return trace, network.forward(images, trace, training=True)


def agreeing(trace: Trace, reference: Trace) -> int:
    """The number of calls whose outputs are the reference's, or that have none."""
    pairs = ((trace.calls[number], reference.calls[other]) for number, other in trace.pairs.items())
    return sum(call.kind == OWN or difference(call.output_in_order, other.output) <= SAME for call, other in pairs)


def draw_weights(network: Network) -> None:
    """Moves every parameter away from what it begins with, by about as much as weights of its layer are large."""
    random = np.random.default_rng(2)
    for layer in network.layers.values():
        weights = layer.get()
        for kind, array in weights.items():
            if kind == "variance":
                weights[kind] = array * random.uniform(0.5, 2, array.shape)
            elif kind == "scale":  # large enough for bounds such as that of relu6 to be met
                weights[kind] = array + random.uniform(0, 3, array.shape)
            else:
                weights[kind] = array + random.normal(size=array.shape) * (array.std() * (array.ndim > 1) or 0.2)
        layer.set(weights)


def set_all(network: Network, weights: Mapping[str, Weights]) -> None:
    for layer, arrays in weights.items():
        network.layers[layer].set(arrays)


def only_logits(output: Any) -> Any:
    """The output of a network. Raises TypeError if it is more, or nothing."""
    if output is None or isinstance(output, tuple | list | dict):
        raise TypeError(f"the network returns {type(output).__name__}; the check needs the logits alone")
    return output


def only_made(network: Any) -> Any:
    """What make_network returns. Raises TypeError if that is nothing."""
    if network is None:
        raise TypeError("make_network returns None; is a return missing?")
    return network


def loss_of(module: ModuleType, usual: Callable[..., Any]) -> Callable[..., Any]:
    """`loss(outputs, labels)` of the user's file, or the usual one."""
    own = vars(module).get("loss", usual)

    def losses_of(outputs: Any, labels: Any) -> Any:
        losses = own(outputs, labels)
        if losses is None:
            raise TypeError("loss returns None; is a return missing?")
        if tuple(losses.shape) != tuple(labels.shape):
            shapes = f"shape {tuple(losses.shape)}, not {tuple(labels.shape)}"
            raise TypeError(f"loss returns {shapes}; it must return the loss of each example")
        return losses

    return losses_of
