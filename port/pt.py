"""A network of torch modules, as the check of a port sees it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from port.match import NEW_SHARE, OWN, Array, Trace, Weights
from port.run import Batch, loss_of, main, only_logits, only_made

View = Callable[[torch.Tensor], torch.Tensor]  # of a parameter: in the canonical layout, sharing its memory
NORMS = {"scale": "weight", "offset": "bias", "mean": "running_mean", "variance": "running_var"}


@dataclass
class Layer:
    """`parameters`: canonical kind -> the tensor that it is a part of, and which; `channels_first`: of features."""

    name: str
    kind: str
    parameters: dict[str, tuple[torch.Tensor, View]]
    settings: dict[str, Any] = field(default_factory=dict)
    channels_first: bool = False

    def get(self) -> Weights:
        return {kind: view(tensor.detach()).numpy().copy() for kind, (tensor, view) in self.parameters.items()}

    def set(self, weights: Weights) -> None:
        for kind, (tensor, view) in self.parameters.items():
            view(tensor.detach()).copy_(torch.from_numpy(weights[kind]))

    def gradients(self) -> Weights:
        return {
            kind: view(tensor.grad).numpy().copy()
            for kind, (tensor, view) in self.parameters.items()
            if tensor.grad is not None
        }


def as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def make_layers(name: str, module: nn.Module) -> list[Layer]:
    """The layer of a module; one for each parameter of its own if its class is the user's."""
    if (layer := make_layer(name, module)) is not None:
        return [layer]
    own = dict(module.named_parameters(recurse=False))
    return [Layer(f"{name}.{kind}".strip("."), OWN, {"value": (tensor, squeezed)}) for kind, tensor in own.items()]


def make_layer(name: str, module: nn.Module) -> Layer | None:
    """The layer of a module of torch's that has parameters; None for any other module."""
    match module:
        case nn.modules.conv._ConvNd():  # its subclasses are the six convolutions
            return convolution(name, module)
        case nn.Linear():
            parameters = {"kernel": (module.weight, lambda weight: weight.T)}
            return Layer(name, "dense", with_bias(parameters, module.bias), {"bias": module.bias is not None})
        case nn.modules.batchnorm._BatchNorm():
            settings = {"epsilon": module.eps, NEW_SHARE: module.momentum}
            return Layer(name, "batch norm", norm_parameters(module), settings, True)
        case nn.LayerNorm():
            # torchvision's LayerNorm2d, and others like it, normalise the channels of images.
            first = type(module) is not nn.LayerNorm
            return Layer(name, "layer norm", norm_parameters(module), {"epsilon": module.eps}, first)
        case nn.GroupNorm():
            settings = {"epsilon": module.eps, "groups": module.num_groups}
            return Layer(name, "group norm", norm_parameters(module), settings, True)
        case nn.Embedding():
            return Layer(name, "embedding", {"kernel": (module.weight, as_it_is)})
        case nn.MultiheadAttention():
            return attention(name, module)
        case nn.PReLU():
            return Layer(name, "prelu", {"alpha": (module.weight, as_it_is)}, {}, True)
    return None


def squeezed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.squeeze()


def with_bias(parameters: dict[str, Any], bias: torch.Tensor | None) -> dict[str, Any]:
    return parameters if bias is None else {**parameters, "bias": (bias, as_it_is)}


def norm_parameters(module: Any) -> dict[str, tuple[torch.Tensor, View]]:
    tensors = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
    return {kind: (tensors[name], as_it_is) for kind, name in NORMS.items() if name in tensors}


def convolution(name: str, module: Any) -> Layer:
    spatial = range(2, 2 + len(module.kernel_size))
    settings = {
        "strides": tuple(module.stride),
        "dilation": tuple(module.dilation),
        "groups": module.groups,
        "padding": module.padding if isinstance(module.padding, str) else tuple(module.padding),
        "bias": module.bias is not None,
    }
    if module.transposed:  # (in, out, height, width) -> (height, width, out, in)
        settings["output padding"] = tuple(module.output_padding)
        parameters = {"kernel": (module.weight, lambda weight: weight.permute(*spatial, 1, 0))}
        return Layer(name, "conv transpose", with_bias(parameters, module.bias), settings, True)
    if is_dense(module):  # a convolution of 1 x 1 is a dense layer of each position
        parameters = {"kernel": (module.weight, lambda weight: weight.flatten(1).T)}
        return Layer(name, "dense", with_bias(parameters, module.bias), {"bias": module.bias is not None}, True)
    parameters = {"kernel": (module.weight, lambda weight: weight.permute(*spatial, 1, 0))}
    return Layer(name, "conv", with_bias(parameters, module.bias), settings, True)


def is_dense(module: Any) -> bool:
    ones = {*module.kernel_size, *module.stride, module.groups}
    return ones == {1} and module.padding in ("same", "valid", (0,) * len(module.kernel_size))


def attention(name: str, module: nn.MultiheadAttention) -> Layer:
    size = module.embed_dim
    parameters: dict[str, tuple[torch.Tensor, View]] = {}
    for index, part in enumerate(("query", "key", "value")):
        rows = slice(index * size, (index + 1) * size)
        parameters[f"{part} kernel"] = (module.in_proj_weight, lambda weight, rows=rows: weight[rows].T)
        if module.in_proj_bias is not None:
            parameters[f"{part} bias"] = (module.in_proj_bias, lambda bias, rows=rows: bias[rows])
    parameters["output kernel"] = (module.out_proj.weight, lambda weight: weight.T)
    if module.out_proj.bias is not None:
        parameters["output bias"] = (module.out_proj.bias, as_it_is)
    return Layer(name, "attention", parameters, {"heads": module.num_heads})


# --- The network ---


class Network:
    """See `port.run.Network`."""

    total = staticmethod(torch.sum)
    biased = False

    def __init__(self, module: ModuleType, batch: Batch, seed: int) -> None:
        torch.set_default_dtype(torch.float64)
        torch.manual_seed(seed)
        self.count = len(batch.images)
        self.loss = loss_of(module, nn.CrossEntropyLoss(reduction="none"))
        self.network: nn.Module = only_made(module.make_network(batch.images.shape[1:], batch.num_classes)).double()
        self.modules = dict(self.network.named_modules())
        attentions = [f"{name}." for name, part in self.modules.items() if isinstance(part, nn.MultiheadAttention)]
        self.of_attention: dict[str, float] = {}  # rates of dropout
        self.by_module: dict[str, list[Layer]] = {}
        for name, part in self.modules.items():
            if name.startswith(tuple(attentions)):  # its parts are not called themselves
                continue
            if isinstance(part, nn.MultiheadAttention):
                self.of_attention[name] = part.dropout
            if isinstance(vars(part).get("dropout"), float):  # of recurrent layers, too
                part.dropout = 0.0
            self.by_module[name] = make_layers(name, part)
        self.layers = {layer.name: layer for layers in self.by_module.values() for layer in layers}

    def arrays(self) -> Weights:
        tensors = self.network.state_dict().items()
        return {name: tensor.numpy() for name, tensor in tensors if tensor.is_floating_point()}  # no counters

    def forward(self, images: Array, trace: Trace, training: bool) -> Array:
        self.network.train(training)
        hooks: list[torch.utils.hooks.RemovableHandle] = []
        for name, layers in self.by_module.items():
            for layer in layers:
                enter, leave = self.hooks(layer, trace)
                hooks.append(self.modules[name].register_forward_pre_hook(enter, with_kwargs=True))
                hooks += [] if layer.kind == OWN else [self.modules[name].register_forward_hook(leave)]
        with torch.no_grad(), Watch(trace):
            output = only_logits(self.network(torch.from_numpy(images).permute(0, 3, 1, 2)))
        for hook in hooks:
            hook.remove()
        return output.numpy()

    def hooks(self, layer: Layer, trace: Trace) -> tuple[Callable[..., None], Callable[..., None]]:
        """What tells the trace, before and after a module is called."""

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = args[0] if args else next(iter(kwargs.values()))
            if layer.name in self.of_attention and module.training:
                trace.drop(self.of_attention[layer.name])
            trace.enter(layer, None if layer.kind == OWN else self.canonical(layer, x))

        def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            trace.leave(self.canonical(layer, output[0] if isinstance(output, tuple) else output))

        return enter, leave

    def canonical(self, layer: Layer, tensor: torch.Tensor) -> Array:
        """Examples first, channels last."""
        array = tensor.detach().numpy().copy()
        if array.ndim == 3 and array.shape[1] == self.count != array.shape[0]:  # (positions, n, features)
            return array.swapaxes(0, 1)
        return np.moveaxis(array, 1, -1) if layer.channels_first and array.ndim > 2 else array

    def gradients(self, images: Array, labels: Array) -> tuple[float, dict[str, Weights]]:
        self.network.train()
        self.network.zero_grad()
        with Watch(Trace()):
            outputs = self.network(torch.from_numpy(images).permute(0, 3, 1, 2))
            loss = self.loss(outputs, torch.from_numpy(labels)).mean()
        loss.backward()
        return loss.item(), {name: layer.gradients() for name, layer in self.layers.items()}

    def losses(self, outputs: Array, labels: Array) -> tuple[Array, Array]:
        given = torch.from_numpy(outputs).requires_grad_()
        losses = self.loss(given, torch.from_numpy(labels))
        losses.sum().backward()
        return losses.detach().numpy(), given.grad.numpy()


class Watch(TorchFunctionMode):
    """Sees each operation of a pass: takes note of shapes, and lets dropout drop nothing."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace

    def __torch_function__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if "dropout" in function.__name__:  # of torch and of torch.nn.functional: (input, p, training)
            x, rate, active = [*args, *kwargs.values(), 0.5, True][:3]
            if active:
                self.trace.drop(rate, x.detach().numpy())
            return x
        if "dropout_p" in kwargs:  # scaled_dot_product_attention
            self.trace.drop(kwargs["dropout_p"])
            kwargs = {**kwargs, "dropout_p": 0.0}
        output = function(*args, **kwargs)
        if isinstance(output, torch.Tensor) and output.ndim == 4:
            self.trace.see([output.shape[0], *output.shape[2:], output.shape[1]])
        return output


if __name__ == "__main__":
    main(Network, "pt.py")
