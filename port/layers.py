"""A layer with parameters as the check sees it, and what the frameworks' layers have in common.

A file for each framework, `pt.py`, `tf.py` and `jax.py`, makes these layers of its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Weights = dict[str, Array]  # kind of a parameter, such as "kernel" -> canonical array
CanonicalView = Callable[[Array], Array]  # an array of the framework's -> its canonical form, sharing the memory
LayerParameters = dict[str, tuple[Any, CanonicalView]]
NEW_SHARE = "momentum (share of the new statistics)"  # a setting, which PyTorch and Keras count from other ends
OWN_PARAMETER = "parameter"  # the kind of a layer that is a single parameter of a class of the user's
STATISTICS = ("mean", "variance")  # parameters that are not trained


@dataclass
class Layer(ABC):
    """A layer with parameters, in its framework.

    Attributes:
      name: in its own network.
      kind: "conv", "conv transpose", "dense", "batch norm", "layer norm", "group norm", "attention", "embedding",
        "prelu" or OWN_PARAMETER.
      parameters: kind of a parameter -> the framework's variable that it is, or is a part of, and which part.
      settings: what else decides its output, by name, such as the strides.
    """

    name: str
    kind: str
    parameters: LayerParameters
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Turns a convolution of 1 x 1 into what it is: a dense layer of each position."""
        if self.kind != "conv":
            return
        variable, view = self.parameters["kernel"]
        size, padding = self.get()["kernel"].shape[:-2], self.settings["padding"]
        pads = not isinstance(padding, str) and np.any(padding)
        if {*size, *self.settings["strides"], self.settings["groups"]} == {1} and not pads:
            self.kind, self.settings = "dense", {}
            self.parameters["kernel"] = variable, lambda array: view(array)[(0,) * len(size)]

    @staticmethod
    @abstractmethod
    def read(variable: Any) -> Array:
        """A copy of the variable's value."""

    @staticmethod
    @abstractmethod
    def write(variable: Any, array: Array) -> None: ...

    def get(self) -> Weights:
        return {kind: view(self.read(variable)) for kind, (variable, view) in self.parameters.items()}

    def set(self, weights: Weights) -> None:
        """Sets these parameters, which need not be all."""
        for kind, value in weights.items():
            variable, view = self.parameters[kind]
            array = self.read(variable)
            view(array)[...] = value
            self.write(variable, array)

    def gradients(self, of_variables: Mapping[int, Array]) -> Weights:
        """Of the parameters that are trained. `of_variables`: id of a variable -> its gradient."""
        return {
            kind: view(of_variables[id(variable)])
            for kind, (variable, view) in self.parameters.items()
            if id(variable) in of_variables
        }


def as_it_is(array: Array) -> Array:
    return array


def without_unit_axes(array: Array) -> Array:
    """For parameters whose axes of one position differ between frameworks."""
    return np.atleast_1d(array.squeeze())


def without_heads(part: str, kind: str) -> CanonicalView:
    """The view of a kernel or bias of attention, whose axis of features Keras and Flax divide into heads and features.

    Args:
      part: "query", "key", "value" or "output".
    """
    if kind == "bias":
        return lambda bias: bias.reshape(-1)
    if part == "output":
        return lambda kernel: kernel.reshape(-1, kernel.shape[-1])
    return lambda kernel: kernel.reshape(len(kernel), -1)
