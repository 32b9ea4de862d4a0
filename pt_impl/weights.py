"""Weights in PyTorch: canonical names and layout, to and from NCHW images, OIHW kernels, (out, in) dense."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from common.spec.networks import NetworkSpec, Weights


def load_weights(network: nn.Sequential, spec: NetworkSpec, weights: Weights) -> None:
    """Sets every parameter from canonical arrays, cast to the network's precision."""
    state = {}
    for name, array in weights.items():
        layer, kind = name.split(".")
        if kind == "kernel":
            if array.ndim == 4:  # HWIO -> OIHW
                array = array.transpose(3, 2, 0, 1)
            else:  # (in, out) -> (out, in), the inputs of the first dense layer from HWC to CHW
                if layer == "dense1":
                    array = reorder(array, before_flatten(spec), (2, 0, 1))
                array = array.T
        state[f"{layer}.{'weight' if kind == 'kernel' else 'bias'}"] = torch.from_numpy(array.copy())
    network.load_state_dict(state)


def get_weights(network: nn.Sequential, spec: NetworkSpec) -> Weights:
    """Canonical name -> array in the network's precision."""
    return to_canonical(dict(network.named_parameters()), spec)


def to_canonical(tensors: dict[str, torch.Tensor], spec: NetworkSpec) -> Weights:
    """Canonical name -> array, of parameters or anything shaped like them: `load_weights` backwards."""
    weights = {}
    for name, tensor in tensors.items():
        layer, kind = name.split(".")
        array = tensor.detach().cpu().numpy()
        if kind == "weight":
            if array.ndim == 4:  # OIHW -> HWIO
                array = array.transpose(2, 3, 1, 0)
            else:
                array = array.T
                if layer == "dense1":  # CHW -> HWC
                    height, width, channels = before_flatten(spec)
                    array = reorder(array, (channels, height, width), (1, 2, 0))
        weights[f"{layer}.{'kernel' if kind == 'weight' else 'bias'}"] = array
    return weights


def before_flatten(spec: NetworkSpec) -> tuple[int, ...]:
    """(height, width, channels) of what is flattened."""
    return spec.activations["pool2"]


def reorder(array: NDArray[np.generic], shape: tuple[int, ...], axes: tuple[int, ...]) -> NDArray[np.generic]:
    """Transposes the first axis of `array`, (shape[0] * shape[1] * shape[2], ...), taken as three."""
    split = array.reshape(*shape, -1)
    return split.transpose(*axes, 3).reshape(array.shape)
