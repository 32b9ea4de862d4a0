"""What lies between two layers, found from their numbers: `relu(conv1 + input of conv1)`, `gelu (exact)(dense1)`.

Frameworks have functions that leave no trace in a network's list of layers. Where a port departs between two layers,
what goes into the second one is compared with what common functions make of all earlier values, on either side.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from scipy import special

from port.layers import Array
from port.match import SAME_WITHIN, array_difference

NamedArray = tuple[str, Array]
MOST_SUMMED = 16  # the latest values of which sums are tried
MOST_SECONDS = 5  # for sums
MOST_PADDED = 6  # rows, and columns
GELU_TANH = "gelu (tanh approximation)"

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu (exact)": lambda x: x * special.ndtr(x),
    GELU_TANH: lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "tanh": np.tanh,
    "sigmoid": special.expit,
    "silu": lambda x: x * special.expit(x),
    "relu6": lambda x: np.clip(x, 0, 6),
    "softplus": lambda x: np.logaddexp(x, 0),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
    "hard swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "softmax": lambda x: special.softmax(x, axis=-1),
    "log softmax": lambda x: special.log_softmax(x, axis=-1),
    "mean of the channels": lambda x: x.mean(-1, keepdims=True),
}


def leaky_relu(slope: float) -> Callable[[Array], Array]:
    return lambda x: np.where(x > 0, x, slope * x)


LEAKY_RELUS = {f"leaky relu with slope {slope}": leaky_relu(slope) for slope in (0.01, 0.1, 0.2, 0.3)}
ACTIVATIONS |= LEAKY_RELUS
RELUS = "relu", *LEAKY_RELUS


def explain(target: Array, known: Sequence[NamedArray]) -> str | None:
    """The expression of earlier values that gives `target`; None if none is found. `known`: the latest one last.

    One example of the batch tells expressions apart.
    """
    target = target[:1]
    bases: list[NamedArray] = []
    for name, base in reversed(known):
        if not any(_same(base[:1], other) for _, other in bases):
            bases.append((name, base[:1]))
    if found := _of_any(target, bases) or _joined(target, bases):
        return found
    end = time.monotonic() + MOST_SECONDS
    for (name, base), (other, added) in itertools.permutations(bases[:MOST_SUMMED], 2):
        if time.monotonic() > end:
            break
        if added.shape == target.shape and (found := _of_one(target - added, name, base)):
            return f"{other} + {found}".replace(" + -1 times ", " - ")
        if base.shape == added.shape:
            sums = [
                (f"{other} + {name}", added + base),
                (f"{other} - {name}", added - base),
                (f"{other} * {name}", added * base),
            ]
            if added.shape != target.shape:
                sums += [(f"{other} + {relu}({name})", added + ACTIVATIONS[relu](base)) for relu in RELUS]
            if found := _of_any(target, sums):
                return found
    return None


def _joined(target: Array, bases: Sequence[NamedArray]) -> str | None:
    """Values beside each other along the channels, each explained by itself."""
    for name, base in bases:
        size = base.shape[-1]
        if target.ndim == base.ndim and size < target.shape[-1] and (first := _of_one(target[..., :size], name, base)):
            rest = target[..., size:]
            if second := _of_any(rest, bases) or _joined(rest, bases):
                return f"{first} beside {second}"
    return None


def _of_any(target: Array, values: Sequence[NamedArray]) -> str | None:
    return next(filter(None, (_of_one(target, *value) for value in values)), None)


def _of_one(target: Array, name: str, base: Array) -> str | None:
    for first, value in _activated(name, base):
        for second, reshaped in _reshaped(first, value, target.shape):
            if _same(reshaped, target):
                return second
            if first == name and second != name:  # an activation after a pooling
                for third, activated in _activated(second, reshaped):
                    if _same(activated, target):
                        return third
    return _sloped(target, name, base) or _flattened(target, name, base)


def _flattened(target: Array, name: str, base: Array) -> str | None:
    """What is flattened after a pooling: `target` is given its rows and columns back."""
    if target.ndim != 2 or base.ndim != 4 or target.shape[1] % base.shape[3]:
        return None
    height, width, channels = base.shape[1:]
    positions = target.shape[1] // channels
    for rows in range(2, height):
        columns = positions // rows
        if rows * columns == positions and rows * width == columns * height:
            last = target.reshape(-1, rows, columns, channels)
            first = target.reshape(-1, channels, rows, columns).transpose(0, 2, 3, 1)
            for order, spread in (("last", last), ("first", first)):
                if found := _of_one(spread, name, base):
                    return f"{found}, flattened with channels {order}"
    return None


def _activated(name: str, x: Array) -> Iterator[NamedArray]:
    yield name, x
    for activation, function in ACTIVATIONS.items():
        yield f"{activation}({name})", function(x)


def _sloped(target: Array, name: str, base: Array) -> str | None:
    """A multiple, ReLU with a slope below zero, and ELU; their parameter is read from the numbers."""
    if base.shape != target.shape or not base.any():
        return None
    factor = float(np.vdot(target, base) / np.vdot(base, base))
    if factor and _same(target, factor * base):
        return f"{factor:.4g} times {name}"
    if not (base < 0).any() or not _same(target[base > 0], base[base > 0]):
        return None
    for activation, below in (("leaky relu with slope", base[base < 0]), ("elu with alpha", np.expm1(base[base < 0]))):
        factors = target[base < 0] / below
        if array_difference(factors, np.full_like(factors, factors[0])) <= SAME_WITHIN:
            return f"{activation} {factors[0]:.4g}({name})"
    return None


def _reshaped(name: str, x: Array, shape: tuple[int, ...]) -> Iterator[NamedArray]:
    """What pooling, flattening, padding and the like make of `x`, where that has the shape."""
    if x.shape == shape:
        yield name, x
    if x.ndim != 4:
        if x.ndim == 3 and shape == (x.shape[0], x.shape[2]):
            yield f"mean of all positions of {name}", x.mean(1)
            yield f"first position of {name}", x[:, 0]
        if x.ndim == 3 and shape == (x.shape[0], x[0].size):
            yield f"{name}, flattened", x.reshape(shape)
            yield f"{name}, transposed and flattened", x.transpose(0, 2, 1).reshape(shape)
        return
    if len(shape) == 2 and shape[1] == x[0].size:
        yield f"{name}, flattened with channels last", x.reshape(shape)
        yield f"{name}, flattened with channels first", x.transpose(0, 3, 1, 2).reshape(shape)
    if shape in ((x.shape[0], x.shape[3]), (x.shape[0], 1, 1, x.shape[3])):
        yield f"mean of {name}", x.mean((1, 2)).reshape(shape)
        yield f"maximum of {name}", x.max((1, 2)).reshape(shape)
    if len(shape) == 3 and shape == (x.shape[0], x.shape[1] * x.shape[2], x.shape[3]):
        yield f"positions of {name}", x.reshape(shape)
    if len(shape) != 4 or shape[3] != x.shape[3]:
        return
    if x.shape[1] < shape[1] <= x.shape[1] + MOST_PADDED:
        for top in range(shape[1] - x.shape[1] + 1):
            for left in range(shape[2] - x.shape[2] + 1):
                ends = shape[1] - x.shape[1] - top, shape[2] - x.shape[2] - left
                padded = np.pad(x, ((0, 0), (top, ends[0]), (left, ends[1]), (0, 0)))
                yield f"{name} padded by {top}, {left} before and {ends[0]}, {ends[1]} after", padded
    elif shape[1] <= x.shape[1]:
        yield from _pooled(name, x, shape)


def _pooled(name: str, x: Array, shape: tuple[int, ...]) -> Iterator[NamedArray]:
    sizes = range(1, 4), range(1, 4), range(2), range(3)
    for window, stride, before, after in itertools.product(*sizes):
        spans = [(length + before + after - window) // stride + 1 for length in x.shape[1:3]]
        if tuple(spans) != shape[1:3] or window == stride == 1 or before > window // 2:
            continue
        pads = ((0, 0), (before, after), (before, after), (0, 0))
        words = f"{window} x {window}, stride {stride}"
        words += f", padded by {before} and {after}" if before + after else ""

        def windows(padded: Array, window: int = window, stride: int = stride) -> Any:
            view = np.lib.stride_tricks.sliding_window_view(padded, (window, window), axis=(1, 2))
            return view[:, ::stride, ::stride]

        total = windows(np.pad(x, pads)).sum((-2, -1))
        yield f"maximum over {words} of {name}", windows(np.pad(x, pads, constant_values=-np.inf)).max((-2, -1))
        yield f"mean over {words} of {name}" + (", padding counted" if before + after else ""), total / window**2
        if before + after:
            count = windows(np.pad(np.ones_like(x), pads)).sum((-2, -1))
            yield f"mean over {words} of {name}, padding not counted", total / np.maximum(count, 1)


def _same(array: Array, other: Array) -> bool:
    return array_difference(array, other) <= SAME_WITHIN
