"""Weights in PyTorch: canonical names and layout, to and from NCHW images, OIHW kernels, (out, in) dense."""

from collections.abc import Iterator
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
TORCH_NAMES = {"kernel": "weight", "bias": "bias"}
TORCH_NAMES |= {"scale": "weight", "offset": "bias", "mean": "running_mean", "variance": "running_var"}


def load_weights(network: nn.Module, spec: NetworkSpec, weights: Weights) -> None:
    """Sets every parameter from canonical arrays, cast to the network's precision."""
    state = {name: torch.from_numpy(array.copy()) for name, array in to_native(weights, spec).items()}
    others = {
        name: value
        for name, value in network.state_dict().items()
        if spec.is_own or name.endswith("num_batches_tracked")  # a network of the user's may have unused layers
    }
    network.load_state_dict(others | state)


def get_weights(network: nn.Module, spec: NetworkSpec) -> Weights:
    """Canonical name -> array in the network's precision. Every replica must call it: each may have only a part."""
    return to_canonical(network.state_dict(), spec)


def to_native(weights: Weights, spec: NetworkSpec) -> Weights:
    """PyTorch's name -> array, of canonical parameters or anything shaped like them."""
    if layout := spec.layout_in("pt"):
        return layout.to_native(weights)
    return {
        native_weight_name(parameter): weight_to_native(parameter, weights[parameter.name])
        for parameter in spec.parameters
        if parameter.name in weights
    }


def to_canonical(tensors: dict[str, torch.Tensor], spec: NetworkSpec, trained: bool = False) -> Weights:
    """Canonical name -> a copy as an array, of parameters or anything shaped like them: `to_native` backwards.

    Every replica must call it: each may have only some of the tensors, or shares of them.

    Args:
      trained: whether only trained parameters are meant.
    """
    arrays = {name: to_array(tensor) for name, tensor in tensors.items()}
    if layout := spec.layout_in("pt"):
        return layout.to_canonical(arrays)
    parameters = [parameter for parameter in spec.parameters if parameter.trainable or not trained]
    weights = {
        parameter.name: weight_from_native(parameter, arrays[name])
        for parameter in parameters
        if (name := native_weight_name(parameter)) in arrays
    }
    if len(weights) < len(parameters):
        weights = {name: array for part in gather_over_replicas(weights) for name, array in part.items()}
    return weights


def to_array(tensor: torch.Tensor) -> Array:
    """A copy of the whole tensor, of which other replicas may have shares: then all of them must call it."""
    tensor = tensor.detach()
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # DTensor is slow to import
    return np.array(whole.cpu())


def native_weight_name(parameter: Parameter) -> str:
    """`conv1.kernel` -> `conv1.weight`."""
    layer, _, kind = parameter.name.rpartition(".")
    return f"{layer}.{TORCH_NAMES[kind]}"


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
