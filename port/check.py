"""The check of a port: one process for each framework, then a table, the first departure and its cause."""

import math
import os
import pickle
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from common.implementations import IMPLEMENTATIONS, interpreter_of
from common.platform.errors import UserError
from common.platform.machine import REPOSITORY
from port.explain import explain
from port.match import SAME, Array, Call, difference
from port.run import STATISTICS, Batch, Result

BATCH_SIZE = 8
FILES = {"pt": "pt.py", "tf": "tf.py", "jax": "jax.py"}  # implementation -> file of a network's folder
UNLIKE_SPREADS = 1.25  # factor between standard deviations of initial weights that is told


# Setting -> what a framework's default is, and how to change it.
DEFAULTS = {
    ("batch norm", "epsilon"): "PyTorch and Flax add 1e-5, Keras 0.001: BatchNormalization(epsilon=1e-5)",
    ("batch norm", "share of the new statistics"): (
        "PyTorch's momentum of 0.1 is Keras's and Flax's of 0.9, whose default is 0.99: momentum=0.9"
    ),
    ("layer norm", "epsilon"): (
        "PyTorch adds 1e-5, Keras 0.001, Flax 1e-6: LayerNormalization(epsilon=1e-5), LayerNorm(epsilon=1e-5)"
    ),
    ("group norm", "epsilon"): "PyTorch adds 1e-5, Keras 0.001, Flax 1e-6: give epsilon=1e-5",
    ("conv", "padding"): (
        'with strides, Keras and Flax pad more behind than before for "same", PyTorch\'s padding=1 pads both sides alike:'
        ' ZeroPadding2D(1) and padding="valid"; in Flax padding=1'
    ),
    ("conv transpose", "padding"): "PyTorch's padding and output_padding cut the edges that Keras's \"same\" cuts behind",
}


@dataclass(frozen=True)
class Finding:
    """The first place where a port departs.

    Attributes:
      place: the layer, or what lies between two layers; names are those of both files.
      cause: what differs, where it is known.
    """

    place: str
    cause: str | None


def check(folder: Path, implementations: Sequence[str], batch: Batch, console: Console) -> bool:
    """Prints for each port whether it is the first file's network. Returns whether all are."""
    results = run_all(folder, implementations, batch)
    first, *ports = implementations
    same = True
    for port in ports:
        comparison = Comparison(results[first], results[port], FILES[first], FILES[port], batch)
        console.print(comparison.table())
        for line in comparison.lines():
            console.print(f"{line}\n", soft_wrap=False)
        same &= comparison.same
    return same


def run_all(folder: Path, implementations: Sequence[str], batch: Batch) -> dict[str, Result]:
    """The results of each framework, in a process of its own. Raises UserError if one of them fails."""
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        (place / "batch").write_bytes(pickle.dumps(batch))
        running: dict[str, subprocess.Popen[str]] = {}
        for name in implementations:
            reference = ["--reference", str(place / implementations[0])] if running else []
            running[name] = subprocess.Popen(
                [interpreter_of(name), "-m", f"port.{name}", str(folder.resolve()), "--batch", str(place / "batch"),
                 "--output", str(place / name), *reference],
                cwd=REPOSITORY, env={**os.environ, **QUIET}, text=True, stderr=subprocess.PIPE,
            )  # fmt: skip
            if len(running) == 1:  # the others need its file
                finish(name, running[name])
        for name in implementations[1:]:
            finish(name, running[name])
        return {name: pickle.loads((place / name).read_bytes()) for name in implementations}


QUIET = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}


def finish(name: str, process: "subprocess.Popen[str]") -> None:
    _, errors = process.communicate()
    if process.returncode:
        told = errors.strip().splitlines() or [f"ended with status {process.returncode}"]
        package = IMPLEMENTATIONS[name].package
        if f"No module named '{package}'" in told[-1]:
            raise UserError(f"{package} is not installed for {FILES[name]}; --implementations names the others")
        raise UserError(told[-1])


class Comparison:
    """A port beside the reference."""

    def __init__(self, reference: Result, port: Result, here: str, there: str, batch: Batch) -> None:
        self.reference, self.port, self.here, self.there, self.batch = reference, port, here, there, batch
        self.pairs = {other: number for number, other in port.trace.pairs.items()}
        self.finding = self.find()

    @property
    def same(self) -> bool:
        return self.finding is None

    # --- Numbers ---

    def outputs(self, number: int) -> tuple[Array, Array]:
        """The outputs of a pair of calls, by the number of the port's."""
        mine = self.port.trace.calls[number].output
        theirs = self.reference.trace.calls[self.port.trace.pairs[number]].output
        assert mine is not None and theirs is not None
        return theirs, mine

    def forward(self, number: int) -> float:
        return difference(*reversed(self.outputs(number)))

    def gradient(self, number: int) -> float:
        """The largest difference in a pair's gradients, relative to the largest gradient of the network."""
        mine, theirs = self.port.gradients[number], self.reference.gradients[self.port.trace.pairs[number]]
        largest = max((np.abs(array).max() for of in self.reference.gradients.values() for array in of.values()), default=1.0)  # fmt: skip
        return max((_apart(mine[kind], theirs[kind]) / largest for kind in mine if kind in theirs), default=0.0)

    # --- The first departure ---

    def find(self) -> Finding | None:
        searches = (self.in_layers, self.behind_the_last, self.in_dropout, self.in_gradients, self.in_evaluation)
        return next((finding for search in searches if (finding := search())), None)

    def in_layers(self) -> Finding | None:
        """The first call of the port that departs, or that has no counterpart."""
        for number, call in enumerate(self.port.trace.calls):
            if number not in self.port.trace.pairs:
                return Finding(f"{self.there}'s {call.layer} ({about(call)}) has no counterpart", self.left_over(call))
            other = self.reference.trace.calls[self.port.trace.pairs[number]]
            if missing := sorted(call.weights.keys() ^ other.weights.keys()):
                with_it = self.there if missing[0] in call.weights else self.here
                return Finding(self.both(call, other), f"only {with_it} has {' and '.join(missing)} there")
            if self.forward(number) > SAME:
                return self.explained(call, other)
        unused = [call for number, call in enumerate(self.reference.trace.calls) if number not in self.pairs]
        if unused:
            return Finding(f"{self.here}'s {unused[0].layer} ({about(unused[0])}) has no counterpart", None)
        return None

    def left_over(self, call: Call) -> str | None:
        """What the reference still has that could be meant."""
        free = [other for number, other in enumerate(self.reference.trace.calls) if number not in self.pairs]
        alike = [other for other in free if other.kind == call.kind] or free
        return f"{self.here} still has {alike[0].layer} ({about(alike[0])})" if alike else None

    def both(self, call: Call, other: Call) -> str:
        return f"{other.layer} ({self.there}: {call.layer})"

    def explained(self, call: Call, other: Call) -> Finding:
        """Whether the layer itself departs, or what goes into it."""
        place = self.both(call, other)
        theirs, mine = other.input, call.input
        if call.order is not None and len(call.order):
            mine = mine[:, call.order]
        if difference(mine, theirs) <= SAME:
            return Finding(place, self.different_settings(call, other))
        if mine.shape != theirs.shape and (cause := self.different_settings(call, other)):
            return Finding(place, cause)
        known = self.known_before(call)
        here, there = (explain(values, known) for values in (theirs, mine))
        before = known[-1][0] if known else "the images"
        place = f"between {before} and {place}"
        return Finding(place, self.two_ways(here, there))

    def two_ways(self, here: str | None, there: str | None) -> str | None:
        if here == there:
            return None
        unknown = "something else"
        return f"{self.here} has {here or unknown}, {self.there} {there or unknown}{advice(here, there)}"

    def known_before(self, call: Call) -> list[tuple[str, Array]]:
        """Values that agree, by name, the latest last."""
        known = [("images", self.batch.images)]
        for number, earlier in enumerate(self.port.trace.calls):
            if earlier is call:
                break
            if number not in self.port.trace.pairs:
                continue
            other = self.reference.trace.calls[self.port.trace.pairs[number]]
            if difference(earlier.input, other.input) <= SAME:
                known.append((f"input of {other.layer}", other.input))
            if other.output is not None and self.forward(number) <= SAME:
                known.append((other.layer, other.output))
        return known

    def different_settings(self, call: Call, other: Call) -> str | None:
        """The settings of two layers that differ, with what is known of the frameworks' defaults."""
        mine, theirs = comparable(call), comparable(other)
        differing = [name for name in mine if name in theirs and mine[name] != theirs[name]]
        if not differing:
            return None
        texts = [f"{name}: {theirs[name]} in {self.here}, {mine[name]} in {self.there}" for name in differing]
        known = [DEFAULTS[call.kind, name] for name in differing if (call.kind, name) in DEFAULTS]
        return "; ".join(texts) + (f" ({'; '.join(known)})" if known else "")

    def behind_the_last(self) -> Finding | None:
        if difference(self.port.output, self.reference.output) <= SAME:
            if abs(self.port.loss - self.reference.loss) <= SAME * abs(self.reference.loss):
                return None
            return Finding(f"the loss: {self.reference.loss:.10g} in {self.here}, {self.port.loss:.10g} in {self.there}", None)  # fmt: skip
        last = self.port.trace.calls[-1]
        known = [*self.known_before(last), (self.reference.trace.calls[self.port.trace.pairs[len(self.port.trace.calls) - 1]].layer, last.output)]  # fmt: skip
        here, there = (explain(values, known) for values in (self.reference.output, self.port.output))
        return Finding(f"after {known[-1][0]}, the last layer", self.two_ways(here, there))

    def in_dropout(self) -> Finding | None:
        here, there = self.reference.rates, self.port.rates
        if sorted(rate for rate in here if rate) == sorted(rate for rate in there if rate):
            return None
        return Finding("dropout", f"rates {listed(here)} in {self.here}, {listed(there)} in {self.there}")

    def in_gradients(self) -> Finding | None:
        for number, call in reversed(list(enumerate(self.port.trace.calls))):
            if self.gradient(number) > SAME:
                other = self.reference.trace.calls[self.port.trace.pairs[number]]
                return Finding(f"the gradients of {self.both(call, other)}; all outputs agree", None)
        return None

    def in_evaluation(self) -> Finding | None:
        for number, call in enumerate(self.port.trace.calls):
            other = self.reference.trace.calls[self.port.trace.pairs[number]]
            if self.statistics(number) > SAME and not self.biased(number):
                place = f"the running statistics of {self.both(call, other)}"
                return Finding(place, self.different_settings(call, other))
        evaluated = zip(self.port.eval_outputs, self.port.trace.pairs.values(), strict=False)
        for number, (output, paired) in enumerate(evaluated):
            if difference(output, self.reference.eval_outputs[paired]) > SAME:
                other = self.reference.trace.calls[paired]
                return Finding(f"{self.both(self.port.trace.calls[number], other)}, in evaluation", None)
        if difference(self.port.eval_output, self.reference.eval_output) > SAME:
            return Finding("after the last layer, in evaluation", None)
        return None

    def statistics(self, number: int) -> float:
        mine, theirs = self.port.statistics[number], self.reference.statistics[self.port.trace.pairs[number]]
        return max((difference(mine[kind], theirs[kind]) for kind in mine if kind in theirs), default=0.0)

    def biased(self, number: int) -> bool:
        """Whether the running variances differ only by the divisor, n or n - 1."""
        paired = self.port.trace.pairs[number]
        call, other = self.port.trace.calls[number], self.reference.trace.calls[paired]
        share = other.settings.get("share of the new statistics")
        if share is None or call.settings.get("share of the new statistics") != share:
            return False
        mine, theirs = self.port.statistics[number], self.reference.statistics[paired]
        if difference(mine["mean"], theirs["mean"]) > SAME:
            return False
        count = other.input[..., 0].size
        old = (1 - share) * other.weights["variance"]
        ratio = (mine["variance"] - old) / (theirs["variance"] - old)
        factors = (count - 1) / count, count / (count - 1)
        return any(difference(ratio, np.full_like(ratio, factor)) <= 1e3 * SAME for factor in factors)

    # --- Text ---

    def table(self) -> Table:
        """A line for each pair of calls, in the port's order, and for each that has no counterpart."""
        table = Table(box=None, pad_edge=False)
        for heading in (self.here, self.there, "kind", "output", "gradient", ""):
            table.add_column(heading, justify="right" if heading in ("output", "gradient") else "left")
        for number, call in enumerate(self.port.trace.calls):
            if number not in self.port.trace.pairs:
                table.add_row("-", call.layer, call.kind, "", "", "no counterpart")
                continue
            other = self.reference.trace.calls[self.port.trace.pairs[number]]
            forward, gradient = self.forward(number), self.gradient(number)
            verdict = "same" if max(forward, gradient) <= SAME else "departs"
            table.add_row(other.layer, call.layer, call.kind, shown(forward), shown(gradient), verdict)
        for number, other in enumerate(self.reference.trace.calls):
            if number not in self.pairs:
                table.add_row(other.layer, "-", other.kind, "", "", "no counterpart")
        return table

    def lines(self) -> Iterator[str]:
        """The answer, and what the check has noticed beside it."""
        if self.finding is None:
            apart = difference(self.port.output, self.reference.output)
            yield f"{self.there} is the network of {self.here}: outputs agree to {apart:.0e}, gradients, one update and evaluation too."  # fmt: skip
        else:
            cause = f" {self.finding.cause}." if self.finding.cause else " The cause is not among those that the check knows."  # fmt: skip
            yield f"{self.there} departs: {self.finding.place}.{cause}"
        if any(self.biased(number) for number in self.port.trace.pairs if self.statistics(number) > SAME):
            yield (
                "Running variances differ by the factor n / (n - 1), with n values in a channel of a batch: PyTorch stores"
                " the unbiased variance, Keras and Flax the biased one. No option changes this. Only evaluation uses them."
            )
        yield from self.initialisers()

    def initialisers(self) -> Iterator[str]:
        """Layers whose first weights have another spread; the check itself gives all files the same weights."""
        for number, paired in self.port.trace.pairs.items():
            mine, theirs = self.port.spreads[number], self.reference.spreads[paired]
            for kind in mine:
                if kind not in theirs or not max(mine[kind], theirs[kind]):
                    continue
                low, high = sorted((mine[kind], theirs[kind]))
                if low * UNLIKE_SPREADS < high:
                    layer = self.reference.trace.calls[paired].layer
                    yield (
                        f"Initial weights differ: the {kind} of {layer} has a standard deviation of {theirs[kind]:.2g} in"
                        f" {self.here} and {mine[kind]:.2g} in {self.there}. By default PyTorch draws kernels and biases"
                        " uniformly within 1 / sqrt(inputs), Keras kernels after Glorot, Flax after LeCun; both set biases"
                        " to zero. The check gives both files the same weights."
                    )
                    return


def advice(here: str | None, there: str | None) -> str:
    """What is known of defaults, where the two expressions differ by one of them."""
    both = f"{here} {there}"
    for words, text in (
        (("gelu (exact)", "gelu (tanh"), "PyTorch's and Keras's gelu is exact by default, jax.nn.gelu approximates"),
        (("leaky relu",), "slopes by default: 0.01 in PyTorch and Flax, 0.3 in Keras's layer, 0.2 in its function"),
        (("padding counted", "padding not counted"), "PyTorch and Flax count padding by default, Keras does not"),
        (("softmax",), "a loss that takes logits applies softmax itself"),
        (("flattened in",), "PyTorch flattens channels first"),
    ):
        if all(word in both for word in words):
            return f" ({text})"
    return ""


def comparable(call: Call) -> dict[str, Any]:
    """The settings of a layer, with its padding as numbers of zeros (before, behind) for each axis."""
    settings = dict(call.settings)
    if call.kind == "conv" and call.kernel:
        settings["padding"] = zeros(settings["padding"], call)
    return settings


def zeros(padding: Any, call: Call) -> Any:
    if isinstance(padding, str) and padding.lower() not in ("same", "valid"):
        return padding
    assert call.kernel
    sizes, strides, dilation = call.kernel[:-2], call.settings["strides"], call.settings["dilation"]
    if isinstance(padding, int):
        padding = (padding,) * len(sizes)
    pads = []
    for axis, size in enumerate(sizes):
        if not isinstance(padding, str):
            own = padding[axis]
            pads.append(tuple(own) if isinstance(own, tuple | list) else (own, own))
        elif padding.lower() == "valid":
            pads.append((0, 0))
        else:
            length = call.input.shape[1 + axis]
            outputs = math.ceil(length / strides[axis])
            total = max((outputs - 1) * strides[axis] + dilation[axis] * (size - 1) + 1 - length, 0)
            pads.append((total // 2, total - total // 2))
    return tuple(pads)


def about(call: Call) -> str:
    shapes = ", ".join(f"{kind} {' x '.join(map(str, shape))}" for kind, shape in call.shapes.items() if kind not in STATISTICS)  # fmt: skip
    return f"{call.kind}; {shapes}"


def listed(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates) or "none"


def shown(apart: float) -> str:
    return "shape" if math.isinf(apart) else f"{apart:.0e}"


def _apart(array: Array, other: Array) -> float:
    return math.inf if array.shape != other.shape else float(np.abs(array - other).max(initial=0.0))


def make_batch(image_shape: tuple[int, ...], num_classes: int) -> Batch:
    random = np.random.default_rng(1)
    return Batch(random.normal(size=(BATCH_SIZE, *image_shape)), random.integers(num_classes, size=BATCH_SIZE), num_classes)  # fmt: skip
