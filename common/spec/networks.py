"""The networks as data: layers, initial weights, and properties that depend on the images' shape.

Each implementation writes the network natively, and converts weights to and from the canonical layout (layers.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import DTypeLike

from common.platform.errors import UserError
from common.platform.files import Arrays
from common.spec.layers import (
    BatchNorm,
    Block,
    Conv,
    Dense,
    Dropout,
    Flatten,
    GlobalAveragePool,
    Layer,
    MaxPool,
    Parameter,
    Relu,
    Residual,
    Shape,
    Trace,
)
from common.spec.options import ModelName
from common.spec.randomness import STREAM_WEIGHTS, random_bits

Maker = TypeVar("Maker", bound=Callable[..., object])
Weights = Arrays  # canonical name -> array of floats


def _normalised(number: int, filters: int, size: int, stride: int = 1) -> tuple[Layer, Layer]:
    conv = Conv(f"conv{number}", filters, size, padding=size // 2, stride=stride, use_bias=False, relu=False)
    return conv, BatchNorm(f"bn{number}")


def _residual(name: str, body: tuple[Layer, ...], filters: int, stride: int, projected: bool) -> Residual:
    """`projected`: the shortcut is a convolution too, since the shapes differ."""
    conv = Conv("0", filters, 1, stride=stride, use_bias=False, relu=False)
    return Residual(name, body, (Block("downsample", (conv, BatchNorm("1"))),) if projected else ())


def _basic(name: str, filters: int, stride: int, projected: bool) -> Residual:
    """Two convolutions 3 x 3; the first one has the stride."""
    body = (*_normalised(1, filters, 3, stride), Relu(), *_normalised(2, filters, 3))
    return _residual(name, body, filters, stride, projected)


def _bottleneck(name: str, filters: int, stride: int, projected: bool) -> Residual:
    """Three convolutions: 1 x 1, 3 x 3 with the stride, and 1 x 1 with four times the channels."""
    wide = _normalised(3, 4 * filters, 1)
    body = (*_normalised(1, filters, 1), Relu(), *_normalised(2, filters, 3, stride), Relu(), *wide)
    return _residual(name, body, 4 * filters, stride, projected)


def _stage(
    number: int, make: Callable[..., Residual], blocks: int, filters: int, stride: int, projected: bool = True
) -> Block:
    """Blocks of one kind. The first one changes size and channels; `projected`: its shortcut is a convolution."""
    first = make("0", filters, stride, projected)
    return Block(f"layer{number}", (first, *(make(str(index), filters, 1, False) for index in range(1, blocks))))


LAYERS: dict[ModelName, tuple[Layer, ...]] = {
    "cnn": (
        Conv("conv1", 32, 3, padding="same"),
        MaxPool("pool1"),
        Conv("conv2", 64, 3, padding="same"),
        MaxPool("pool2"),
        Flatten("flatten"),
        Dense("dense1", 128),
        Dense("dense2"),
    ),
    # The network of the usual MNIST example, after LeCun et al. (1998) with more channels and ReLU.
    "lenet": (
        Conv("conv1", 20, 5),
        MaxPool("pool1"),
        Conv("conv2", 50, 5),
        MaxPool("pool2"),
        Flatten("flatten"),
        Dense("dense1", 500),
        Dense("dense2"),
    ),
    # The network of the usual course script.
    "mnist_dropout": (
        Conv("conv1", 32, 3),
        Conv("conv2", 64, 3),
        MaxPool("pool"),
        Dropout("dropout1", 0.25),
        Flatten("flatten"),
        Dense("dense1", 128),
        Dropout("dropout2", 0.5),
        Dense("dense2"),
    ),
    # Residual networks (He et al., 2016, "Deep Residual Learning for Image Recognition"), with torchvision's names. The
    # paper's first three networks for CIFAR-10 have 3, 5 and 7 blocks a stage; this one has one.
    "resnet8": (
        *_normalised(1, 16, 3),
        Relu(),
        _stage(1, _basic, 1, 16, stride=1, projected=False),
        _stage(2, _basic, 1, 32, stride=2),
        _stage(3, _basic, 1, 64, stride=2),
        GlobalAveragePool("avgpool"),
        Dense("fc"),
    ),
    # Its stem is that of the paper's networks for CIFAR-10: a convolution 3 x 3 and no pooling.
    "resnet18": (
        *_normalised(1, 64, 3),
        Relu(),
        _stage(1, _basic, 2, 64, stride=1, projected=False),
        _stage(2, _basic, 2, 128, stride=2),
        _stage(3, _basic, 2, 256, stride=2),
        _stage(4, _basic, 2, 512, stride=2),
        GlobalAveragePool("avgpool"),
        Dense("fc"),
    ),
    "resnet50": (
        *_normalised(1, 64, 7, stride=2),
        Relu(),
        MaxPool("maxpool", size=3, stride=2, padding=1),
        _stage(1, _bottleneck, 3, 64, stride=1),
        _stage(2, _bottleneck, 4, 128, stride=2),
        _stage(3, _bottleneck, 6, 256, stride=2),
        _stage(4, _bottleneck, 3, 512, stride=2),
        GlobalAveragePool("avgpool"),
        Dense("fc"),
    ),
}
# Smallest height and width. Each normalised channel then has more than one value, even for a single image.
SMALLEST_IMAGE: dict[ModelName, int] = {
    "cnn": 4,
    "lenet": 16,
    "mnist_dropout": 6,
    "resnet8": 8,
    "resnet18": 16,
    "resnet50": 64,
}
# Where `--strategy pipeline` cuts: the last layer of the first stage. In a residual network both stages have about the
# same work. In the other networks most work is in the convolutions (first stage), and most weights are behind them.
END_OF_FIRST_STAGE: dict[ModelName, str] = {
    "cnn": "pool2",
    "lenet": "pool2",
    "mnist_dropout": "dropout1",
    "resnet8": "layer1.0",
    "resnet18": "layer2.1",
    "resnet50": "layer2.3",
}


@dataclass(frozen=True)
class NetworkSpec:
    """A network for images of a given shape.

    Attributes:
      image_shape: (height, width, channels).
      parameters: in the order of the layers.
      activations, flattened, dropout_rates: see `Trace`; the last activations are the logits.
      flops_per_image: floating-point operations of one forward pass over one image, see `Trace`.
    """

    name: ModelName
    image_shape: tuple[int, int, int]
    num_classes: int
    parameters: tuple[Parameter, ...]
    activations: dict[str, Shape]
    flattened: dict[str, Shape]
    dropout_rates: tuple[float, ...]
    flops_per_image: int

    @classmethod
    def make(cls, name: ModelName, image_shape: tuple[int, int, int], num_classes: int) -> "NetworkSpec":
        """Raises UserError where the images are too small for the network."""
        smallest = SMALLEST_IMAGE[name]
        if min(image_shape[:2]) < smallest:
            height, width, _ = image_shape
            raise UserError(
                f"--model {name}: needs images of at least {smallest} x {smallest}, these are {height} x {width}"
                " (--dataset, --image-shape)"
            )
        trace = Trace(num_classes)
        trace.follow(LAYERS[name], image_shape)
        parameters, rates = tuple(trace.parameters), tuple(trace.dropout_rates)
        return cls(name, image_shape, num_classes, parameters, trace.activations, trace.flattened, rates, trace.flops)

    def maker(self, makers: Mapping[str, Maker]) -> Maker:
        """An implementation's function that makes this network. Raises UserError if it has none."""
        if self.name not in makers:
            raise UserError(f"--model {self.name}: this implementation does not have it, only {', '.join(makers)}")
        return makers[self.name]

    @property
    def normalises(self) -> bool:
        """Whether the network has batch normalisation, and so running statistics, which are not trained."""
        return not all(parameter.trainable for parameter in self.parameters)

    @property
    def drops(self) -> bool:
        """Whether the network has dropout, and so needs to know which examples it gets."""
        return bool(self.dropout_rates)

    @property
    def end_of_first_stage(self) -> str:
        """The layer after which `--strategy pipeline` cuts."""
        return END_OF_FIRST_STAGE[self.name]

    @property
    def num_parameters(self) -> int:
        """Number of trained parameters."""
        return sum(parameter.size for parameter in self.parameters if parameter.trainable)

    def initial_weights(self, seed: int) -> Weights:
        """Canonical name -> float64 array, the same on every machine, since only sums, products and roots are used."""
        weights: Weights = {}
        for index, parameter in enumerate(self.parameters):
            bits = random_bits(parameter.size, seed, STREAM_WEIGHTS, index)
            uniform = (bits >> np.uint64(11)) * 2.0**-53  # float64 in [0, 1)
            weights[parameter.name] = (parameter.bound * (2 * uniform - 1)).reshape(parameter.shape)
            if parameter.kind in ("scale", "variance"):
                weights[parameter.name] += 1
        return weights

    def check(self, weights: Weights, source: str, dtype: DTypeLike = np.float32) -> Weights:
        """Returns `weights`.

        Args:
          dtype: in which the values must be finite.

        Raises:
          UserError: a name is missing or unexpected, a shape is wrong, or a value is not a finite number of `dtype`.
        """
        expected = {parameter.name: parameter.shape for parameter in self.parameters}
        for name, array in weights.items():
            if array.dtype.kind != "f":
                raise UserError(f"{source}: {name} is of type {array.dtype}; should be floating-point numbers")
        converts = "pt_impl.weights.get_weights converts PyTorch's (docs/networks.md)"
        check_arrays(weights, expected, source, f"--model {self.name} has other names; {converts}", dtype)
        return weights


SHOWN = 4  # names in a message


def check_arrays(
    arrays: Weights, shapes: dict[str, tuple[int, ...]], source: str, about: str = "", dtype: DTypeLike | None = None
) -> None:
    """Raises UserError unless `arrays` has exactly these names and shapes, with finite numbers.

    Args:
      source: what the message begins with.
      about: what the message says of the names where some are missing or unexpected.
      dtype: in which the numbers must be finite; None: in their own.
    """
    wrong = {
        "missing": [name for name in shapes if name not in arrays],
        "unexpected": [name for name in arrays if name not in shapes],
    }
    if any(wrong.values()):
        lists = {what: ", ".join([*names[:SHOWN], *["..."] * bool(names[SHOWN:])]) for what, names in wrong.items()}
        found = "; ".join(f"{what}: {names}" for what, names in lists.items() if names)
        raise UserError(f"{source}: {found}{f'; {about}' if about else ''}")
    for name, array in arrays.items():
        if array.shape != shapes[name]:
            raise UserError(f"{source}: {name} has shape {array.shape}, should have {shapes[name]}")
        if not np.isfinite(array).all():
            raise UserError(f"{source}: {name} contains NaN or infinity")
        with np.errstate(over="ignore"):
            if dtype is not None and not np.isfinite(array.astype(dtype)).all():
                largest = f"{np.abs(array).max():.1e}"
                raise UserError(f"{source}: {name} has values up to {largest}, too large for {np.dtype(dtype)}")
