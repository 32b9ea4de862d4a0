"""The networks as data: layers, canonical parameter names and shapes, initial weights, operation counts.

Canonical layout, in files and between implementations: images (N, H, W, C); convolution kernels
(height, width, in, out); dense kernels (in, out); flattened features in the order height, width, channel.
An implementation writes the network natively and converts at its edge.
"""

import math
from dataclasses import dataclass

import numpy as np

from common.platform.errors import UserError
from common.platform.files import Arrays
from common.spec.batches import STREAM_WEIGHTS, random_bits
from common.spec.options import ModelName

Weights = Arrays  # canonical name -> array of floats


@dataclass(frozen=True)
class Conv:
    """Convolution, stride 1, with bias, then ReLU. "same": zeros so that the size stays; "valid": none."""

    name: str
    filters: int
    kernel_size: int
    padding: str


@dataclass(frozen=True)
class MaxPool:
    """Maximum over 2 x 2, stride 2; an odd last row or column is dropped."""

    name: str


@dataclass(frozen=True)
class Flatten:
    name: str


@dataclass(frozen=True)
class Dense:
    """Dense layer with bias; `units` None stands for the number of classes, without ReLU: the logits."""

    name: str
    units: int | None = None


LAYERS: dict[ModelName, tuple[Conv | MaxPool | Flatten | Dense, ...]] = {
    "cnn": (
        Conv("conv1", 32, 3, "same"),
        MaxPool("pool1"),
        Conv("conv2", 64, 3, "same"),
        MaxPool("pool2"),
        Flatten("flatten"),
        Dense("dense1", 128),
        Dense("dense2"),
    ),
    # The network of the usual MNIST example, after LeCun et al. (1998) with more channels and ReLU.
    "lenet": (
        Conv("conv1", 20, 5, "valid"),
        MaxPool("pool1"),
        Conv("conv2", 50, 5, "valid"),
        MaxPool("pool2"),
        Flatten("flatten"),
        Dense("dense1", 500),
        Dense("dense2"),
    ),
}
SMALLEST_IMAGE: dict[ModelName, int] = {"cnn": 4, "lenet": 16}


@dataclass(frozen=True)
class Parameter:
    """One trainable array, its initial values uniform in +-`bound`; biases start at zero.

    Kernels: bound sqrt(6 / (fan_in + fan_out)), Glorot and Bengio (2010), equation 16, where a
    convolution's fans count its receptive field, height times width.
    """

    name: str
    shape: tuple[int, ...]

    @property
    def bound(self) -> float:
        if len(self.shape) == 1:
            return 0.0
        *field, inputs, outputs = self.shape
        return math.sqrt(6 / (math.prod(field) * (inputs + outputs)))

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class NetworkSpec:
    """A network for images of a given shape.

    Attributes:
      image_shape: (height, width, channels).
      parameters: in the order of the layers.
      activations: name and shape (without the batch) of every layer's output; the last are the logits.
      flops_per_image: floating-point operations of one forward pass over one image, a multiplication and
        an addition counted as two; convolutions and dense layers, without biases, ReLU and pooling, as
        torch.utils.flop_counter counts.
    """

    name: ModelName
    image_shape: tuple[int, int, int]
    num_classes: int
    parameters: tuple[Parameter, ...]
    activations: dict[str, tuple[int, ...]]
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
        parameters: list[Parameter] = []
        activations: dict[str, tuple[int, ...]] = {}
        flops = 0
        shape: tuple[int, ...] = image_shape
        for layer in LAYERS[name]:
            if isinstance(layer, Conv):
                height, width, channels = shape
                size = layer.kernel_size
                lost = 0 if layer.padding == "same" else size - 1
                shape = (height - lost, width - lost, layer.filters)
                parameters.append(Parameter(f"{layer.name}.kernel", (size, size, channels, layer.filters)))
                parameters.append(Parameter(f"{layer.name}.bias", (layer.filters,)))
                flops += 2 * size * size * channels * math.prod(shape)
            elif isinstance(layer, MaxPool):
                shape = (shape[0] // 2, shape[1] // 2, shape[2])
            elif isinstance(layer, Flatten):
                shape = (math.prod(shape),)
            else:
                inputs = shape[0]
                shape = (layer.units or num_classes,)
                parameters.append(Parameter(f"{layer.name}.kernel", (inputs, *shape)))
                parameters.append(Parameter(f"{layer.name}.bias", shape))
                flops += 2 * inputs * shape[0]
            activations[layer.name] = shape
        return cls(name, image_shape, num_classes, tuple(parameters), activations, flops)

    @property
    def num_parameters(self) -> int:
        return sum(parameter.size for parameter in self.parameters)

    def initial_weights(self, seed: int) -> Weights:
        """Canonical name -> float64 array, the same on every machine: sums, products and roots only."""
        weights: Weights = {}
        for index, parameter in enumerate(self.parameters):
            bits = random_bits(parameter.size, seed, STREAM_WEIGHTS, index)
            uniform = (bits >> np.uint64(11)) * 2.0**-53  # float64 in [0, 1)
            weights[parameter.name] = (parameter.bound * (2 * uniform - 1)).reshape(parameter.shape)
        return weights

    def check(self, weights: Weights, source: str) -> Weights:
        """Returns `weights`; raises UserError where a name is missing or extra, or a shape differs."""
        expected = {parameter.name: parameter.shape for parameter in self.parameters}
        found = {name: array.shape for name, array in weights.items()}
        for name in [*expected, *(name for name in found if name not in expected)]:
            if expected.get(name) != found.get(name):
                raise UserError(
                    f"{source}: {name} has shape {found.get(name)}, --model {self.name} needs {expected.get(name)}"
                )
        return weights
