"""Layers: a network is a tree of layers, from which its shapes, parameters and operations are computed.

Canonical layout, in files and between implementations: images (N, H, W, C); convolution kernels (height, width, in,
out); dense kernels (in, out); flattened features in the order height, width, channel. A canonical name consists of the
names of the layers on the path down the tree and the parameter's kind: `stage2.block1.conv1.kernel`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Conv:
    """Convolution, then ReLU if `relu`.

    Attributes:
      padding: number of zeros on each side; "same": the size does not change at stride 1.
    """

    name: str
    filters: int
    kernel_size: int
    padding: int | Literal["same"] = 0
    stride: int = 1
    use_bias: bool = True
    relu: bool = True


@dataclass(frozen=True)
class BatchNorm:
    """Normalisation of each channel, with scale and offset (Ioffe and Szegedy, 2015); PyTorch's rule.

        y = (x - m) / sqrt(v + EPSILON) scale + offset

    In training m and v are mean and variance over the shard of a batch, or over the whole batch with
    `--sync-batchnorm`. The divisor of the variance is n, the number of values in the channel. In evaluation m and v are
    running statistics, which are not trained. Each training step sets s = (1 - MOMENTUM) s + MOMENTUM m for the mean,
    and the same with v n / (n - 1) for the variance. With several replicas the first one's statistics are used.
    """

    name: str


EPSILON, MOMENTUM = 1e-5, 0.1


@dataclass(frozen=True)
class Relu:
    """ReLU after a layer that has none of its own. It has no name, and its output is not among the activations."""


@dataclass(frozen=True)
class MaxPool:
    """Maximum over size x size; values left over at the end of a row or column are dropped."""

    name: str
    size: int = 2
    stride: int = 2
    padding: int = 0


@dataclass(frozen=True)
class GlobalAveragePool:
    """The mean of each channel."""

    name: str


@dataclass(frozen=True)
class Flatten:
    name: str


@dataclass(frozen=True)
class Dropout:
    """In training each value is zero with probability `rate`; the others grow by 1 / (1 - rate)."""

    name: str
    rate: float


@dataclass(frozen=True)
class Dense:
    """Dense layer with bias and ReLU. If `units` is None, it has one unit per class and no ReLU: the logits."""

    name: str
    units: int | None = None

    @property
    def relu(self) -> bool:
        return self.units is not None


@dataclass(frozen=True)
class Block:
    """A sequence of layers with a name."""

    name: str
    layers: "tuple[Layer, ...]"


@dataclass(frozen=True)
class Residual:
    """The sum of `body` and `shortcut`, then ReLU. A shortcut without layers is the input itself."""

    name: str
    body: "tuple[Layer, ...]"
    shortcut: "tuple[Layer, ...]" = ()


Layer = Conv | BatchNorm | Relu | MaxPool | GlobalAveragePool | Flatten | Dropout | Dense | Block | Residual
Kind = Literal["kernel", "bias", "scale", "offset", "mean", "variance"]


@dataclass(frozen=True)
class Parameter:
    """One array of a network.

    Attributes:
      flattened: (height, width, channels) of a dense kernel's inputs before they are flattened; None for all others.
    """

    name: str
    shape: Shape
    kind: str
    flattened: Shape | None = None

    @property
    def trainable(self) -> bool:
        return self.kind not in ("mean", "variance")

    @property
    def bound(self) -> float:
        """Initial kernels are uniform in +-bound: sqrt(6 / (fan_in + fan_out)), Glorot and Bengio (2010), equation 16.

        The fans of a convolution include its receptive field, height times width. Scale and variance begin at one, all
        other parameters at zero.
        """
        if self.kind != "kernel":
            return 0.0
        *receptive_field, inputs, outputs = self.shape
        return math.sqrt(6 / (math.prod(receptive_field) * (inputs + outputs)))

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass
class Trace:
    """What is computed while an image is followed through the layers.

    Attributes:
      parameters: in the order of the layers.
      activations: canonical name of each layer -> shape of its output, without the batch. Includes residuals, but not
        blocks, since the output of a block is that of its last layer.
      flattened: name of each layer with flattened output -> (height, width, channels) before it was flattened.
      dropout_rates: of the layers that have dropout.
      flops: floating-point operations; a multiplication and an addition count as two. Only convolutions and dense
        layers count, without biases, as in torch.utils.flop_counter; normalisation, ReLU and pooling do not.
      flops_until: those of each layer in `activations` and of all before it.
    """

    num_classes: int
    parameters: list[Parameter] = field(default_factory=list)
    activations: dict[str, Shape] = field(default_factory=dict)
    flattened: dict[str, Shape] = field(default_factory=dict)
    dropout_rates: list[float] = field(default_factory=list)
    flops: int = 0
    flops_until: dict[str, int] = field(default_factory=dict)

    def follow(self, layers: Sequence[Layer], shape: Shape, prefix: str = "") -> Shape:
        """Follows an image of `shape` through all layers; returns the shape of the last output."""
        spread: Shape | None = None  # shape of the values before they were flattened
        for layer in layers:
            if isinstance(layer, Relu):
                continue
            name = prefix + layer.name
            if isinstance(layer, Flatten):
                spread = shape
            shape = self._through(layer, name, shape, spread)
            if isinstance(layer, Dense):
                spread = None
            if not isinstance(layer, Block):
                self.activations[name] = shape
                self.flops_until[name] = self.flops
            if spread is not None:
                self.flattened[name] = spread
        return shape

    def _through(self, layer: Layer, name: str, shape: Shape, spread: Shape | None) -> Shape:
        match layer:
            case Conv(filters=filters, kernel_size=size, stride=stride):
                padding = size - 1 if layer.padding == "same" else 2 * layer.padding
                shape, channels = (
                    (*(_steps(size_in + padding, size, stride) for size_in in shape[:2]), filters),
                    shape[2],
                )
                self._add(name, "kernel", (size, size, channels, filters))
                if layer.use_bias:
                    self._add(name, "bias", (filters,))
                self.flops += 2 * size * size * channels * math.prod(shape)
            case BatchNorm():
                for kind in ("scale", "offset", "mean", "variance"):
                    self._add(name, kind, shape[-1:])
            case MaxPool(size=size, stride=stride, padding=padding):
                shape = (*(_steps(size_in + 2 * padding, size, stride) for size_in in shape[:2]), shape[2])
            case GlobalAveragePool():
                shape = shape[-1:]
            case Flatten():
                shape = (math.prod(shape),)
            case Dropout(rate=rate):
                self.dropout_rates.append(rate)
            case Dense(units=units):
                inputs, shape = shape[0], (units or self.num_classes,)
                self._add(name, "kernel", (inputs, *shape), spread)
                self._add(name, "bias", shape)
                self.flops += 2 * inputs * shape[0]
            case Block(layers=inner):
                shape = self.follow(inner, shape, f"{name}.")
            case Residual(body=body, shortcut=shortcut):
                shape, other = self.follow(body, shape, f"{name}."), self.follow(shortcut, shape, f"{name}.")
                assert shape == other, f"{name}: the sum of {shape} and {other}"
        return shape

    def _add(self, layer: str, kind: Kind, shape: Shape, flattened: Shape | None = None) -> None:
        self.parameters.append(Parameter(f"{layer}.{kind}", shape, kind, flattened))


def _steps(length: int, window: int, stride: int) -> int:
    """Number of positions of a window along a padded row."""
    return (length - window) // stride + 1


def named_layers(layers: Sequence[Layer], prefix: str = "") -> Iterator[tuple[str, Layer]]:
    """Canonical names of `Trace.activations` with their layers, in the order in which an image passes them."""
    for layer in layers:
        match layer:
            case Relu():
                pass
            case Block(layers=inner):
                yield from named_layers(inner, f"{prefix}{layer.name}.")
            case Residual(body=body, shortcut=shortcut):
                yield from named_layers((*body, *shortcut), f"{prefix}{layer.name}.")
                yield prefix + layer.name, layer
            case _:
                yield prefix + layer.name, layer
