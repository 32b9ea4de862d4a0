"""The networks in PyTorch. Its layouts: NCHW images, OIHW kernels, (out, in) dense."""

from collections import OrderedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from common.spec.networks import ModelSpec, Weights
from common.spec.options import Precision

# Of weights, normalised images and losses; and what layers compute in where that is another.
DTYPES = {"32": torch.float32, "64": torch.float64, "bf16-mixed": torch.float32, "16-mixed": torch.float32}
AUTOCAST = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}

# --- Networks ---


def make_model(spec: ModelSpec, precision: Precision) -> nn.Sequential:
    """The network of `spec`: normalised images (N, C, H, W) to logits (N, classes), in that precision."""
    return {"cnn": make_cnn, "lenet": make_lenet}[spec.name](spec).to(DTYPES[precision])


def make_autocast(precision: Precision, device: torch.device) -> torch.autocast:
    """The context in which layers compute in half precision; without effect where the precision has none."""
    return torch.autocast(device.type, AUTOCAST.get(precision), enabled=precision in AUTOCAST)


def make_cnn(spec: ModelSpec) -> nn.Sequential:
    height, width, channels = spec.image_shape
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 32, 3, padding="same"),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(32, 64, 3, padding="same"),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),  # channel, height, width
            dense1=nn.Linear(64 * (height // 4) * (width // 4), 128),
            relu3=nn.ReLU(),
            dense2=nn.Linear(128, spec.num_classes),
        )
    )


def make_lenet(spec: ModelSpec) -> nn.Sequential:
    height, width, channels = (((size - 4) // 2 - 4) // 2 for size in spec.image_shape)
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(spec.image_shape[2], 20, 5, padding="valid"),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(20, 50, 5, padding="valid"),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),  # channel, height, width
            dense1=nn.Linear(50 * height * width, 500),
            relu3=nn.ReLU(),
            dense2=nn.Linear(500, spec.num_classes),
        )
    )


# --- Weights: canonical names, converted to and from the canonical layout ---


def load_weights(model: nn.Sequential, spec: ModelSpec, weights: Weights) -> None:
    """Sets every parameter from canonical arrays, cast to the model's precision."""
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
    model.load_state_dict(state)


def get_weights(model: nn.Sequential, spec: ModelSpec) -> Weights:
    """Canonical name -> array in the model's precision."""
    return to_canonical(dict(model.named_parameters()), spec)


def to_canonical(tensors: dict[str, torch.Tensor], spec: ModelSpec) -> Weights:
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


def before_flatten(spec: ModelSpec) -> tuple[int, ...]:
    """(height, width, channels) of what is flattened."""
    return spec.activations["pool2"]


def reorder(array: NDArray[np.generic], shape: tuple[int, ...], axes: tuple[int, ...]) -> NDArray[np.generic]:
    """Transposes the first axis of `array`, (shape[0] * shape[1] * shape[2], ...), taken as three."""
    split = array.reshape(*shape, -1)
    return split.transpose(*axes, 3).reshape(array.shape)
