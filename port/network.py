"""A network of the user's, as the check sees it; `pt.py`, `tf.py` and `jax.py` make it in their frameworks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from port.layers import NEW_SHARE, STATISTICS, Array, Layer, Weights
from port.match import Call, Execution


@dataclass(frozen=True)
class Probe:
    """What every network gets: images float64 (n, height, width, channels), labels int64 (n,), and the classes."""

    images: Array
    labels: Array
    num_classes: int


class Network(ABC):
    """A network in its framework, in 64 bits, without dropout.

    Attributes:
      biased: whether running variances divide by n, the number of values, and not by n - 1.
      network: what the user's `make_network` returns.
      layers: those with parameters, by name.
      has_loss: whether the file has a loss of its own.
      execution: takes note of the pass that is under way; None: of none.
    """

    biased: bool

    def __init__(self, module: ModuleType, probe: Probe, seed: int) -> None:
        """Raises TypeError if the file makes no network."""
        self.set_up(seed)
        self.has_loss = "loss" in vars(module)
        self.own_loss = vars(module).get("loss", self.cross_entropy)
        self.layers: dict[str, Layer] = {}
        self.execution: Execution | None = None
        self.network = module.make_network(probe.images.shape[1:], probe.num_classes)
        if self.network is None:
            raise TypeError("make_network returns None; is a return missing?")

    # --- What a framework has of its own ---

    @staticmethod
    @abstractmethod
    def set_up(seed: int) -> None:
        """Sets the framework to 64 bits, and to this seed of initial weights."""

    @staticmethod
    @abstractmethod
    def cross_entropy(outputs: Any, labels: Any) -> Any:
        """The losses (n,)."""

    @abstractmethod
    def arrays(self) -> Weights:
        """All parameters, by the framework's names and in its layouts, as the implementations read them."""

    @abstractmethod
    def outputs(self, images: Array, training: bool) -> Any:
        """What the network returns; `execution` is told of each call and of dropout, which drops nothing."""

    @abstractmethod
    def gradients_of_variables(self, images: Array, labels: Array, loss: Callable[..., Any]) -> tuple[Any, Any]:
        """The mean of `loss(outputs, labels)` in training, and id of each trained variable -> gradient."""

    @abstractmethod
    def losses(self, outputs: Array, labels: Array) -> tuple[Array, Array]:
        """The losses (n,), and the gradients of their sum by the outputs."""

    # --- What all have ---

    def get(self) -> dict[str, Weights]:
        """The weights of each layer."""
        return {name: layer.get() for name, layer in self.layers.items()}

    def set(self, weights: Mapping[str, Weights]) -> None:
        for name, of_layer in weights.items():
            self.layers[name].set(of_layer)

    def loss(self, outputs: Any, labels: Any) -> Any:
        """The losses (n,). Raises TypeError if the user's function returns anything else."""
        losses = self.own_loss(outputs, labels)
        shape = tuple(getattr(losses, "shape", ()))
        if shape != tuple(labels.shape):
            expected = f"not {tuple(labels.shape)}; it must return the loss of each example"
            raise TypeError(f"loss returns shape {shape}, {expected}")
        return losses

    def forward(self, images: Array, execution: Execution, training: bool) -> Array:
        """The network's output (n, classes). Raises TypeError if it is more, or nothing."""
        self.execution = execution
        output = self.outputs(images, training)
        self.execution = None
        if output is None or isinstance(output, tuple | list | dict):
            raise TypeError(f"the network returns {type(output).__name__}; the check needs the logits alone")
        return np.array(output)

    def gradients(
        self, images: Array, labels: Array, loss: Callable[..., Any] | None = None
    ) -> tuple[float, dict[str, Weights]]:
        """The mean loss in training, and the gradients of each layer. `loss`: another one than the network's."""
        value, of_variables = self.gradients_of_variables(images, labels, loss or self.loss)
        return float(value), {name: layer.gradients(of_variables) for name, layer in self.layers.items()}

    def running_statistics(self, call: Call) -> Weights:
        """What this call in training has made of its layer's statistics; the variance is unbiased.

        Keras and Flax have the biased variance, whose divisor is n in place of n - 1.
        """
        statistics = {kind: array for kind, array in self.layers[call.layer].get().items() if kind in STATISTICS}
        if self.biased and statistics:
            new = statistics["variance"] - (1 - call.settings[NEW_SHARE]) * call.weights["variance"]
            statistics["variance"] += new / max(1, call.input[..., 0].size - 1)
        return statistics
