"""Weights in PyTorch: canonical names and layout, to and from NCHW images, OIHW kernels, (out, in) dense."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from common.spec.layers import Parameter
from common.spec.networks import NetworkSpec, Weights
from pt_impl.replicas import gather_over_replicas

Array = NDArray[Any]
# Canonical kind of a parameter -> PyTorch's name.
KINDS = {"kernel": "weight", "bias": "bias"}
KINDS |= {"scale": "weight", "offset": "bias", "mean": "running_mean", "variance": "running_var"}


def load_weights(network: nn.Module, spec: NetworkSpec, weights: Weights) -> None:
    """Sets every parameter from canonical arrays, cast to the network's precision."""
    state = {
        native_weight_name(parameter): torch.from_numpy(weight_to_native(parameter, weights[parameter.name]).copy())
        for parameter in spec.parameters
    }
    counters = {name: value for name, value in network.named_buffers() if name.endswith("num_batches_tracked")}
    network.load_state_dict(state | counters)


def get_weights(network: nn.Module, spec: NetworkSpec) -> Weights:
    """Canonical name -> array in the network's precision. Every replica must call it: each may have only a part."""
    return to_canonical(network.state_dict(), spec.parameters)


def to_canonical(tensors: dict[str, torch.Tensor], parameters: Sequence[Parameter]) -> Weights:
    """Canonical name -> a copy as an array, of parameters or anything shaped like them: `load_weights` backwards.

    Every replica must call it: each may have only some of the tensors, or shares of them.
    """
    weights = {}
    for parameter in parameters:
        if (name := native_weight_name(parameter)) in tensors:
            tensor = tensors[name].detach()
            whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # DTensor is slow to import
            weights[parameter.name] = weight_from_native(parameter, np.array(whole.cpu()))
    if len(weights) < len(parameters):
        weights = {name: array for part in gather_over_replicas(weights) for name, array in part.items()}
    return weights


def native_weight_name(parameter: Parameter) -> str:
    """`conv1.kernel` -> `conv1.weight`."""
    layer, _, kind = parameter.name.rpartition(".")
    return f"{layer}.{KINDS[kind]}"


def weight_to_native(parameter: Parameter, array: Array) -> Array:
    if parameter.kind != "kernel":
        return array
    if array.ndim == 4:  # HWIO -> OIHW
        return array.transpose(3, 2, 0, 1)
    if parameter.flattened:  # the inputs from HWC to CHW
        array = array.reshape(*parameter.flattened, -1).transpose(2, 0, 1, 3).reshape(array.shape)
    return array.T  # (in, out) -> (out, in)


def weight_from_native(parameter: Parameter, array: Array) -> Array:
    if parameter.kind != "kernel":
        return array
    if array.ndim == 4:  # OIHW -> HWIO
        return array.transpose(2, 3, 1, 0)
    array = array.T  # (out, in) -> (in, out)
    return flattened_to_canonical(array, parameter.flattened) if parameter.flattened else array


def flattened_to_canonical(array: Array, shape: tuple[int, ...]) -> Array:
    """The first axis of `array` from the order CHW to HWC; `shape`: (height, width, channels)."""
    height, width, channels = shape
    return array.reshape(channels, height, width, -1).transpose(1, 2, 0, 3).reshape(array.shape)


@contextmanager
def statistics_kept(network: nn.Module) -> Iterator[None]:
    """Restores the network's running statistics at the end of the context."""
    before = [buffer.clone() for buffer in network.buffers()]
    yield
    for buffer, value in zip(network.buffers(), before, strict=True):
        buffer.copy_(value)
