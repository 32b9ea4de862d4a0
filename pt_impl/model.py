"""The networks in PyTorch. Its layouts: NCHW images, OIHW kernels, (out, in) dense; in memory channels come last."""

from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from common.config import Precision
from common.datasets import Dataset
from common.models import ModelSpec, Weights
from pt_impl.data import ShardSampler, channels_first

# Of weights, normalised images and losses; and what layers compute in where that is another.
DTYPES = {"32": torch.float32, "64": torch.float64, "bf16-mixed": torch.float32, "16-mixed": torch.float32}
AUTOCAST = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}

# --- Input ---


class Normalise:
    """uint8 (n, C, H, W) to the network's input, (n, C, H, W) in its precision.

    No module with buffers: DistributedDataParallel would send those around in every step.
    """

    def __init__(self, dataset: Dataset, precision: Precision, device: torch.device) -> None:
        self.dtype = DTYPES[precision]
        self.shift, self.scale = (
            torch.from_numpy(values).to(device, self.dtype).view(-1, 1, 1) for values in (dataset.shift, dataset.scale)
        )

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return (images.to(self.dtype) - self.shift) * self.scale


class Forward:
    """uint8 images (n, C, H, W) to logits (n, classes), in the weights' precision.

    Attributes:
      network: an nn.Module that takes normalised images.
    """

    def __init__(self, network: nn.Module, dataset: Dataset, precision: Precision, device: torch.device) -> None:
        self.network = network
        self.normalise = Normalise(dataset, precision, device)
        self.autocast = torch.autocast(device.type, AUTOCAST.get(precision), enabled=precision in AUTOCAST)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        with self.autocast:
            return self.network(self.normalise(images)).to(self.normalise.dtype)


# --- Networks ---


def make_model(spec: ModelSpec, precision: Precision) -> nn.Sequential:
    """The network of `spec`: normalised images (N, C, H, W) to logits (N, classes), in that precision."""
    model = {"cnn": make_cnn, "lenet": make_lenet}[spec.name](spec).to(DTYPES[precision])
    # Channels last in memory, for speed alone: docs/performance.md.
    return model.to(memory_format=torch.channels_last)


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


def compiled(model: nn.Module, device: torch.device) -> nn.Module:
    """torch.compile's version of it; on a GPU with CUDA graphs, a launch for a whole pass."""
    mode = "reduce-overhead" if device.type == "cuda" else "default"
    return torch.compile(model, mode=mode, dynamic=False)  # a last batch of another size is compiled for itself


def compile_ahead(
    forward: Callable[[torch.Tensor], torch.Tensor],
    spec: ModelSpec,
    sampler: ShardSampler,
    set_to_none: Callable[[], None],
) -> None:
    """Compiles for both sizes of this rank's shards, a whole batch's and the last one's, as a part of start-up.

    Every rank must call it, since gradients may be reduced. `set_to_none` takes these away.
    """
    for start, stop, _ in sampler.bounds[[0, -1]].tolist():
        images = torch.zeros(stop - start, *spec.image_shape, dtype=torch.uint8, device=sampler.device)
        for _ in range(3):  # CUDA graphs are captured in the second pass
            forward(channels_first(images)).sum().backward()
            set_to_none()


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


# --- Activations: for comparing implementations layer by layer ---


def watch_activations(model: nn.Sequential, spec: ModelSpec) -> tuple[Weights, list[torch.utils.hooks.RemovableHandle]]:
    """Canonical layer name -> its output, filled in by the next forward pass; and the hooks, to be removed."""
    outputs: Weights = {}
    module_dtype = next(model.parameters()).dtype
    # What follows each layer with weights is its ReLU, which belongs to it.
    names = {"relu1": "conv1", "relu2": "conv2", "relu3": "dense1"}

    def hook(name: str) -> Callable[..., None]:
        def keep(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            # Under autocast in half precision, which numpy has only in part.
            array = output.detach().to(module_dtype).cpu().numpy()
            if array.ndim == 4:  # NCHW -> NHWC
                array = array.transpose(0, 2, 3, 1)
            elif name == "flatten":
                height, width, channels = before_flatten(spec)
                array = reorder(array.T, (channels, height, width), (1, 2, 0)).T
            outputs[name] = array

        return keep

    children = [(names.get(name, name), child) for name, child in model.named_children()]
    handles = [
        child.register_forward_hook(hook(name))
        for name, child in children
        if isinstance(child, nn.ReLU | nn.MaxPool2d | nn.Flatten) or name == "dense2"
    ]
    return outputs, handles


# --- Predictions: of one replica alone, once trained ---


def predict(forward: Forward, dataset: Dataset, batch_size: int) -> NDArray[np.floating]:
    """float (n, classes): logits for the whole test set, in its own order."""
    device = next(forward.network.parameters()).device
    forward.network.eval()
    with torch.inference_mode():
        images = dataset.test_images
        parts = (torch.tensor(images[start : start + batch_size]) for start in range(0, len(images), batch_size))
        return torch.cat([forward(channels_first(part.to(device))).cpu() for part in parts]).numpy()
