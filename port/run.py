"""One framework's part of the check: the network's calls, gradients, an update and evaluation, on one batch.

    python -m port.pt FOLDER --probe FILE [--output FILE] [--reference FILE] [--seed S]

The files are this program's own: `check.py` starts one process for each framework, and reads what they have written.
Without --output, it answers requests, see `answer_requests`.
"""

import argparse
import itertools
import math
import os
import pickle
import re
import sys
import textwrap
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import yaml
from pydantic import TypeAdapter, ValidationError

from common.platform.errors import UserError
from common.spec.networks import load_module
from port.layers import OWN_PARAMETER, Array, Weights
from port.match import SAME_WITHIN, Dropout, Execution, LayerCall, array_difference
from port.network import Network, Probe, with_full_names

LEARNING_RATE = 0.1  # of the one update
NAMES_FILE = "names.yaml"
LayerNames = dict[Literal["pt", "tf", "jax"], dict[str, str]]  # port -> name of its layer -> name of the reference's
LONGEST_ERROR = 300  # characters that are shown
MOST_WAYS = 32  # assignments of branches that are tried before a better one is found


@dataclass
class PortResult:
    """What one framework has computed.

    All files get the same weights, those of the reference. They are drawn anew, since initial weights hide mistakes:
    what is multiplied by zero, or divided by one, can be anything.

    Attributes:
      calls, dropouts, pairs: of the first pass, see `Execution`; the reference's calls are paired with themselves.
      output: the network's, of the same pass.
      loss: the mean cross-entropy of that output, or the mean of what `loss` of the network's file returns.
      loss_after: after one update of plain gradient descent.
      eval_output: the network's in evaluation, with the reference's statistics.
      eval_dropouts: dropout that drops in evaluation, too.
      initial: layer -> the file's own initial weights.
      places: where the file's framework keeps each canonical value, see `Layout` in `common/spec/own_network.py`;
        `places_in_layers`: the same for the parameters of `Network.layers`, by `layer.kind`.
      has_loss, biased: see `Network`.
    """

    calls: list[LayerCall]
    dropouts: list[Dropout]
    pairs: dict[int, int]
    output: Array
    loss: float
    loss_after: float
    eval_output: Array
    eval_dropouts: list[Dropout]
    initial: dict[str, Weights]
    places: Weights
    places_in_layers: Weights
    has_loss: bool
    biased: bool


# --- The program ---


def main(make: type[Network], file: str) -> None:
    """The program of one framework. `make`: its class of networks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--probe", type=Path, required=True)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    # The files are this program's own.
    probe: Probe = pickle.loads(given.probe.read_bytes())  # noqa: S301
    reference: PortResult | None = pickle.loads(given.reference.read_bytes()) if given.reference else None  # noqa: S301
    path = given.folder / file
    try:
        module = load_module(path)
        if not callable(vars(module).get("make_network")):
            sys.exit(f"{file}: has no function make_network(image_shape, num_classes)")
        network = make(module, probe, given.seed)
        if given.output:
            names = read_names(given.folder / NAMES_FILE, file, network, reference) if reference else {}
            given.output.write_bytes(pickle.dumps(run_network(network, probe, reference, names)))
        else:
            answer_requests(network)
    except UserError as error:
        sys.exit(str(error))
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything; the line is told
        plain = re.sub(r"\x1b\[\d*m", "", str(error))  # Keras's have bold lines
        text = textwrap.shorten(plain, LONGEST_ERROR, placeholder=" ...")
        sys.exit(f"{place_of_error(error, path)}: {type(error).__name__}: {text}")


def place_of_error(error: Exception, path: Path) -> str:
    """The last line of the user's folder that the error has passed: `pt.py, line 12`."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).parent == path.parent]
    return f"{Path(own[-1].filename).name}, line {own[-1].lineno}" if own else path.name


def read_names(path: Path, file: str, network: Network, reference: PortResult) -> dict[str, str]:
    """The layers of `file` that the user has paired with the reference's; most folders pair none.

    Raises UserError if the table has another form, if there is no layer of a name, or if two layers are unlike.
    """
    try:
        names = TypeAdapter(LayerNames).validate_python(yaml.safe_load(path.read_text()) if path.exists() else {})
    except (ValidationError, yaml.YAMLError):
        raise UserError(f"{path}: should have lines such as `tf: {{dense_1: head}}`, for pt, tf or jax") from None
    pairs = {name: other for port, of_port in names.items() if f"{port}.py" == file for name, other in of_port.items()}
    calls = {call.layer: call for call in reversed(reference.calls)}
    for name, other in pairs.items():
        for wanted, has, layers in ((name, file, network.layers.keys()), (other, "the reference", calls.keys())):
            if wanted not in layers:
                raise UserError(f"{path}: {has} has no layer {wanted}, only {', '.join(sorted(layers))}")
        layer, call = network.layers[name], calls[other]
        mine = LayerCall(name, layer.kind, layer.settings, layer.get(), np.empty(0))
        if not mine.is_like(call):
            raise UserError(f"{path}: {name} is {mine.kind} with {mine.shapes}, {other} {call.kind} with {call.shapes}")
    return pairs


# --- Requests, for audits of the training ---


def answer_requests(network: Network) -> None:
    """Reads pickled requests from standard input until it ends, and writes the answers to standard output.

    A request is the name of a method of `Network`, and its arguments.
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the user's code prints is no answer
    with suppress(EOFError):
        while True:
            method, *arguments = pickle.load(sys.stdin.buffer)  # noqa: S301 - this program's own
            pickle.dump(getattr(network, method)(*arguments), answers)
            answers.flush()


# --- What is compared ---


def run_network(
    network: Network, probe: Probe, reference: PortResult | None, names: Mapping[str, str] | None = None
) -> PortResult:
    """All that is compared; each step begins with the reference's weights."""
    initial = network.get()
    if reference is None:
        draw_weights(network)
        execution = network.forward(probe.images, Execution(), training=True)
        execution.pairs = {number: number for number in range(len(execution.calls))}
    else:
        execution = best_pass(network, probe.images, reference.calls, names)
    calls, of_reference = execution.calls, reference.calls if reference else execution.calls
    pairs = [(calls[number], of_reference[paired]) for number, paired in execution.pairs.items()]

    first = {call.layer: call.weights for call in reversed(calls)}  # of each layer, before the first step
    network.set(first)
    loss, by_layer = network.gradients(probe.images, probe.labels)
    for call in calls:
        call.gradients = call.from_port(by_layer[call.layer])
    moved = {
        name: {kind: array - LEARNING_RATE * by_layer[name].get(kind, 0) for kind, array in weights.items()}
        for name, weights in first.items()
    }
    network.set(moved)
    loss_after, _ = network.gradients(probe.images, probe.labels)

    network.set(first)
    for call, other in pairs:
        network.set({call.layer: call.to_port(other.statistics)})
    evaluation = network.forward(probe.images, Execution(), training=False)
    left = list(evaluation.calls)
    for call in calls:
        if same := next((other for other in left if other.layer == call.layer), None):
            left.remove(same)
            call.eval_output = call.in_order(same.output)
    places, places_in_layers = find_places(network, pairs, of_reference)
    return PortResult(
        calls=calls,
        dropouts=execution.dropouts,
        pairs=execution.pairs,
        output=execution.output,
        loss=loss,
        loss_after=loss_after,
        eval_output=evaluation.output,
        eval_dropouts=evaluation.dropouts,
        initial=initial,
        places=places,
        places_in_layers=places_in_layers,
        has_loss=network.has_loss,
        biased=network.biased,
    )


def shapes_of_calls(calls: Sequence[LayerCall]) -> dict[str, tuple[int, ...]]:
    """Canonical name of each parameter of the reference's calls -> shape, in the order of execution."""
    return {f"{call.layer}.{kind}": shape for call in calls for kind, shape in call.shapes.items()}


def best_pass(
    network: Network, images: Array, reference: Sequence[LayerCall], names: Mapping[str, str] | None
) -> Execution:
    """A port's first pass in training. Of the ways to pair branches that look alike, that in which most calls agree.

    What follows a wrong choice agrees with nothing, and so has no branches that look alike: they are found once the
    choice is right. So the search begins again with each better pass, and changes its latest choices first.
    """
    best, chosen = network.forward(images, Execution(reference, names), training=True), list[int]()
    while (most := num_agreeing_calls(best)) < len(reference):
        chosen += [0] * (len(best.ways) - len(chosen))
        for changes in itertools.islice(itertools.product(*map(range, best.ways)), 1, MOST_WAYS):
            choices = [(old + by) % ways for old, by, ways in zip(chosen, changes, best.ways, strict=False)]
            tried = network.forward(images, Execution(reference, names, choices), training=True)
            if num_agreeing_calls(tried) > most:
                best, chosen = tried, choices
                break
        else:
            break
    return best


def num_agreeing_calls(execution: Execution) -> int:
    """The number of calls whose outputs are the reference's, or that have none."""
    pairs = ((execution.calls[number], execution.reference[other]) for number, other in execution.pairs.items())
    return sum(
        call.kind == OWN_PARAMETER or array_difference(call.in_order(call.output), other.output) <= SAME_WITHIN
        for call, other in pairs
    )


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


def find_places(
    network: Network, pairs: Sequence[tuple[LayerCall, LayerCall]], reference: Sequence[LayerCall]
) -> tuple[Weights, Weights]:
    """Sets the layers to the numbers of canonical values, and reads where they have gone: in arrays and in layers."""
    numbers: Weights = {}
    start = 0
    for name, shape in shapes_of_calls(reference).items():
        stop = start + math.prod(shape)
        numbers[name] = np.arange(start, stop, dtype=float).reshape(shape)
        start = stop
    for layer in network.layers.values():
        layer.set({kind: np.full(array.shape, -1.0) for kind, array in layer.get().items()})  # it may be unused
    for call, other in pairs:
        theirs = {kind: numbers[f"{other.layer}.{kind}"] for kind in other.weights}
        network.layers[call.layer].set(call.to_port(theirs))
    places, places_in_layers = (
        {name: np.rint(array).astype(np.int64) for name, array in arrays.items() if (array >= 0).all()}
        for arrays in (network.arrays(), with_full_names(network.get()))
    )
    return places, places_in_layers
