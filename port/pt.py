"""A network of torch modules, as the check of a port sees it."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from port.layers import NEW_SHARE, OWN_PARAMETER, Array, Layer, LayerParameters, Weights, as_it_is, without_unit_axes
from port.network import Network, Probe
from port.run import main

ARRAY_KINDS = {"weight": "kernel", "bias": "bias"}
NAMES_IN_NORMS = {"weight": "scale", "bias": "offset", "running_mean": "mean", "running_var": "variance"}


@dataclass
class TorchLayer(Layer):
    """`channels_first`: of its inputs and outputs."""

    channels_first: bool = False

    @staticmethod
    def read(variable: torch.Tensor) -> Array:
        return variable.detach().numpy().copy()

    @staticmethod
    def write(variable: torch.Tensor, array: Array) -> None:
        variable.detach().copy_(torch.from_numpy(array))


def make_layers(name: str, module: nn.Module) -> list[Layer]:
    """The layer of a module with its own parameters; one for each of them if its class is the user's."""
    channels_first = True
    match module:
        case nn.modules.conv._ConvNd():  # its subclasses are the six convolutions
            kind = "conv transpose" if module.transposed else "conv"
            settings = convolution_settings(module)
        case nn.Linear():
            kind, settings, channels_first = "dense", {}, False
        case nn.modules.batchnorm._BatchNorm():
            kind, settings = "batch norm", {"epsilon": module.eps, NEW_SHARE: module.momentum}
        case nn.LayerNorm():
            # torchvision's LayerNorm2d, and others like it, normalise the channels of images.
            kind, settings, channels_first = "layer norm", {"epsilon": module.eps}, type(module) is not nn.LayerNorm
        case nn.GroupNorm():
            kind, settings = "group norm", {"epsilon": module.eps, "groups": module.num_groups}
        case nn.Embedding():
            kind, settings, channels_first = "embedding", {}, False
        case nn.MultiheadAttention():
            kind, settings, channels_first = "attention", {"heads": module.num_heads}, False
        case nn.PReLU():
            kind, settings = "prelu", {}
        case _:
            own = module.named_parameters(recurse=False)
            return [
                TorchLayer(f"{name}.{key}".strip("."), OWN_PARAMETER, {"value": (value, without_unit_axes)})
                for key, value in own
            ]
    parameters = attention_parameters(module) if kind == "attention" else parameters_of(module, kind)
    return [TorchLayer(name, kind, parameters, settings, channels_first)]


def parameters_of(module: nn.Module, kind: str) -> LayerParameters:
    """Without counters of batches."""
    names = {"weight": "alpha"} if kind == "prelu" else NAMES_IN_NORMS if "norm" in kind else ARRAY_KINDS
    views = {"kernel": as_it_is if kind == "embedding" else outputs_last, "alpha": without_unit_axes}
    own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    return {names[key]: (tensor, views.get(names[key], as_it_is)) for key, tensor in own if key in names}


def outputs_last(weight: Array) -> Array:
    """(out, in, height, width) -> (height, width, in, out)."""
    return np.moveaxis(weight, (0, 1), (-1, -2))


def convolution_settings(module: Any) -> dict[str, Any]:
    return {
        "strides": tuple(module.stride),
        "dilation": tuple(module.dilation),
        "groups": module.groups,
        "padding": module.padding if isinstance(module.padding, str) else tuple(module.padding),
    }


def attention_parameters(module: nn.MultiheadAttention) -> LayerParameters:
    parameters: LayerParameters = {}
    for index, part in enumerate(("query", "key", "value")):
        rows = slice(index * module.embed_dim, (index + 1) * module.embed_dim)
        parameters[f"{part} kernel"] = module.in_proj_weight, lambda weight, rows=rows: weight[rows].T
        parameters[f"{part} bias"] = module.in_proj_bias, lambda bias, rows=rows: bias[rows]
    parameters["output kernel"] = module.out_proj.weight, outputs_last
    parameters["output bias"] = module.out_proj.bias, as_it_is
    return {key: parameter for key, parameter in parameters.items() if parameter[0] is not None}


# --- The network ---


class TorchNetwork(Network):
    """See `Network`."""

    biased = False

    def __init__(self, module: ModuleType, probe: Probe, seed: int) -> None:
        super().__init__(module, probe, seed)
        self.network.double()
        self.count = len(probe.images)
        modules = dict(self.network.named_modules())
        attentions = [f"{name}." for name, part in modules.items() if isinstance(part, nn.MultiheadAttention)]
        for name, part in modules.items():
            if name.startswith(tuple(attentions)):  # its parts are not called themselves
                continue
            layers = make_layers(name, part)
            self.layers |= {layer.name: layer for layer in layers}
            self.watch(part, layers)

    @staticmethod
    def set_up(seed: int) -> None:
        torch.set_default_dtype(torch.float64)
        torch.manual_seed(seed)

    @staticmethod
    def cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(outputs, labels, reduction="none")

    def watch(self, module: nn.Module, layers: list[Layer]) -> None:
        """Has every call of the module tell the execution."""
        rate = 0.0
        if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
            rate, module.dropout = module.dropout, 0.0

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self.execution is None:
                return
            if module.training:
                self.execution.drop(rate)
            for layer in layers:
                x = args[0] if args else next(iter(kwargs.values()))
                self.execution.enter(layer, None if layer.kind == OWN_PARAMETER else self.canonical(layer, x))

        def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if self.execution is not None and layers[0].kind != OWN_PARAMETER:
                output = output[0] if isinstance(output, tuple) else output
                self.execution.leave(self.canonical(layers[0], output))

        if layers or rate:
            module.register_forward_pre_hook(enter, with_kwargs=True)
        if layers:
            module.register_forward_hook(leave)

    def canonical(self, layer: Layer, tensor: torch.Tensor) -> Array:
        """Examples first, channels last."""
        array = tensor.detach().numpy().copy()
        if array.ndim == 3 and array.shape[1] == self.count != array.shape[0]:  # (positions, n, features)
            return array.swapaxes(0, 1)
        return np.moveaxis(array, 1, -1) if layer.channels_first and array.ndim > 2 else array

    def arrays(self) -> Weights:
        tensors = self.network.state_dict().items()
        return {name: tensor.numpy() for name, tensor in tensors if tensor.is_floating_point()}  # no counters

    def outputs(self, images: Array, training: bool) -> Any:
        self.network.train(training)
        with torch.no_grad(), FunctionWatch(self):
            return self.network(torch.from_numpy(images).permute(0, 3, 1, 2))

    def gradients_of_variables(self, images: Array, labels: Array, loss: Callable[..., Any]) -> tuple[Any, Any]:
        self.network.train()
        self.network.zero_grad()
        with FunctionWatch(self):
            outputs = self.network(torch.from_numpy(images).permute(0, 3, 1, 2))
            value = loss(outputs, torch.from_numpy(labels)).mean()
        value.backward()
        trained = [parameter for parameter in self.network.parameters() if parameter.grad is not None]
        return value, {id(parameter): parameter.grad.numpy() for parameter in trained}

    def losses(self, outputs: Array, labels: Array) -> tuple[Array, Array]:
        given = torch.from_numpy(outputs).requires_grad_()
        losses = self.loss(given, torch.from_numpy(labels))
        losses.sum().backward()
        return losses.detach().numpy(), given.grad.numpy()


class FunctionWatch(TorchFunctionMode):
    """Sees each operation of a pass, and lets dropout drop nothing."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def __torch_function__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        execution = self.network.execution
        if "dropout" in function.__name__:  # of torch and of torch.nn.functional: (input, p, training)
            x, rate, active = [*args, *kwargs.values(), 0.5, True][:3]
            if active and execution is not None:
                execution.drop(rate, x.detach().numpy())
            return x
        if "dropout_p" in kwargs:  # scaled_dot_product_attention
            if execution is not None:
                execution.drop(kwargs["dropout_p"])
            kwargs = {**kwargs, "dropout_p": 0.0}
        return function(*args, **kwargs)


if __name__ == "__main__":
    main(TorchNetwork, "pt.py")
