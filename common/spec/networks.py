"""The networks as data: layers, initial weights, and what follows from the images' shape.

An implementation writes the network natively, and converts weights to and from the canonical layout (layers.py).
"""

from dataclasses import dataclass

import numpy as np

from common.platform.errors import UserError
from common.platform.files import Arrays
from common.spec.layers import Conv, Dense, Flatten, Layer, MaxPool, Parameter, Shape, Trace
from common.spec.options import ModelName
from common.spec.randomness import STREAM_WEIGHTS, random_bits

Weights = Arrays  # canonical name -> array of floats

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
}
SMALLEST_IMAGE: dict[ModelName, int] = {"cnn": 4, "lenet": 16}


@dataclass(frozen=True)
class NetworkSpec:
    """A network for images of a given shape.

    Attributes:
      image_shape: (height, width, channels).
      parameters: in the order of the layers.
      activations, flattened: see `Trace`; the last activations are the logits.
      flops_per_image: of one forward pass over one image, see `Trace`.
    """

    name: ModelName
    image_shape: tuple[int, int, int]
    num_classes: int
    parameters: tuple[Parameter, ...]
    activations: dict[str, Shape]
    flattened: dict[str, Shape]
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
        parameters = tuple(trace.parameters)
        return cls(name, image_shape, num_classes, parameters, trace.activations, trace.flattened, trace.flops)

    @property
    def num_parameters(self) -> int:
        """Those that are trained."""
        return sum(parameter.size for parameter in self.parameters if parameter.trainable)

    def initial_weights(self, seed: int) -> Weights:
        """Canonical name -> float64 array, the same on every machine: sums, products and roots only."""
        weights: Weights = {}
        for index, parameter in enumerate(self.parameters):
            bits = random_bits(parameter.size, seed, STREAM_WEIGHTS, index)
            uniform = (bits >> np.uint64(11)) * 2.0**-53  # float64 in [0, 1)
            weights[parameter.name] = (parameter.bound * (2 * uniform - 1)).reshape(parameter.shape)
            if parameter.kind in ("scale", "variance"):
                weights[parameter.name] += 1
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
