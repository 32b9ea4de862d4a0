"""A network of the user's, as the check sees it; `pt.py`, `tf.py` and `jax.py` make it in their frameworks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from port.layers import NEW_SHARE, STATISTICS, Array, Layer, Weights
from port.match import Execution, LayerCall


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
        self.num_classes = probe.num_classes
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
        """The losses (n,).

        Raises TypeError if the user's function returns anything else, or if there is none and the network returns too
        little for the cross-entropy.
        """
        if not self.has_loss and outputs.shape[-1] < self.num_classes:
            raise TypeError(f"the network returns {outputs.shape[-1]} outputs for {self.num_classes} classes")
        losses = self.own_loss(outputs, labels)
        shape = tuple(getattr(losses, "shape", ()))
        if shape != tuple(labels.shape):
            expected = f"not {tuple(labels.shape)}; it must return the loss of each example"
            raise TypeError(f"loss returns shape {shape}, {expected}")
        return losses

    def forward(self, images: Array, execution: Execution, training: bool) -> Execution:
        """A pass, of which the execution takes note. Raises TypeError if the output is more than logits, or nothing."""
        self.execution = execution
        output = self.outputs(images, training)
        self.execution = None
        if output is None or isinstance(output, tuple | list | dict):
            raise TypeError(f"the network returns {type(output).__name__}; the check needs the logits alone")
        execution.output = np.array(output)
        if training:
            for call in execution.calls:
                call.statistics = call.from_port(self.running_statistics(call))
        return execution

    def gradients(
        self, images: Array, labels: Array, loss: Callable[..., Any] | None = None
    ) -> tuple[float, dict[str, Weights]]:
        """The mean loss in training, and the gradients of each layer. `loss`: another one than the network's."""
        value, of_variables = self.gradients_of_variables(images, labels, loss or self.loss)
        return float(value), {name: layer.gradients(of_variables) for name, layer in self.layers.items()}

    def running_statistics(self, call: LayerCall) -> Weights:
        """What this call in training has made of its layer's statistics; the variance is unbiased.

        Keras and Flax have the biased variance, whose divisor is n in place of n - 1.
        """
        statistics = {kind: array for kind, array in self.layers[call.layer].get().items() if kind in STATISTICS}
        if self.biased and statistics:
            new = statistics["variance"] - (1 - call.settings[NEW_SHARE]) * call.weights["variance"]
            statistics["variance"] += new / max(1, call.input[..., 0].size - 1)
        return statistics

    # --- What audits of a training ask for, see `answer_requests` in `run.py` ---

    def output(self, weights: Weights, images: Array, training: bool) -> Array:
        """The output (n, classes) with these weights, by `layer.kind`."""
        self._set_by_full_names(weights)
        return self.forward(images, Execution(), training).output

    def pass_back(self, weights: Weights, images: Array, gradient: Array) -> Weights:
        """The gradients of what is trained, and the running statistics after a pass in training, by `layer.kind`.

        Args:
          gradient: of something by the output (n, classes).
        """
        self._set_by_full_names(weights)
        execution = self.forward(images, Execution(), training=True)
        statistics = {call.layer: call.statistics for call in execution.calls}
        # Such a loss passes the gradient back: `gradients` takes its mean over all outputs.
        by_output = gradient * gradient.size
        _, gradients = self.gradients(images, by_output, lambda outputs, factors: outputs * factors)
        return with_full_names(gradients) | with_full_names(statistics)

    def _set_by_full_names(self, weights: Weights) -> None:
        for name, array in weights.items():
            layer, _, kind = name.rpartition(".")
            self.layers[layer].set({kind: array})


def with_full_names(of_layers: Mapping[str, Weights]) -> Weights:
    """`layer.kind` -> array."""
    return {f"{name}.{kind}": array for name, of_layer in of_layers.items() for kind, array in of_layer.items()}
