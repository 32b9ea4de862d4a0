"""A network of Flax NNX modules, as the check of a port sees it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from port.match import NEW_SHARE, OWN, Array, Trace, Weights
from port.run import Batch, loss_of, main, only_logits, only_made

jax.config.update("jax_enable_x64", True)

NAMES = {"var": "variance", "embedding": "kernel", "negative_slope": "alpha"}
Convert = Callable[[Array], Array]


@dataclass
class Layer:
    """`parameters`: canonical kind -> variable, its value's canonical form, and the way back."""

    name: str
    kind: str
    parameters: dict[str, tuple[nnx.Variable, Convert, Convert]]
    settings: dict[str, Any] = field(default_factory=dict)

    def get(self) -> Weights:
        return {kind: to(np.array(variable[...])) for kind, (variable, to, _) in self.parameters.items()}

    def set(self, weights: Weights) -> None:
        for kind, (variable, _, back) in self.parameters.items():
            variable.set_value(jnp.asarray(back(weights[kind])))


def make_layers(name: str, module: nnx.Module) -> list[Layer]:
    """The layer of a module with its own parameters; one for each of them if its class is the user's."""
    kinds = (nnx.Param, nnx.BatchStat)
    own = {
        key: value for key, value in vars(module).items() if isinstance(value, kinds) and value.get_value() is not None
    }
    shapes = {NAMES.get(key, key): (value, tuple(value.shape)) for key, value in own.items()}
    normalised = {"bias": "offset"}
    match module:
        case nnx.Conv():
            settings = convolution_settings(module)
            size, groups = settings["kernel size"], module.feature_group_count
            if {*size, *settings["strides"], groups} == {1}:  # a dense layer of each position
                variable, shape = shapes["kernel"]
                return [Layer(name, "dense", reshaped({**shapes, "kernel": (variable, shape[-2:])}), bias_of(module))]
            return [Layer(name, "conv", reshaped(shapes), {**settings, "groups": groups})]
        case nnx.ConvTranspose():
            # Flax does not mirror the kernel, as the gradient of a convolution does, and has (height, width, in, out).
            mirrored = reshaped(shapes)
            if not module.transpose_kernel:
                mirrored["kernel"] = shapes["kernel"][0], mirror, mirror
            return [Layer(name, "conv transpose", mirrored, convolution_settings(module))]
        case nnx.Linear():
            return [Layer(name, "dense", reshaped(shapes), bias_of(module))]
        case nnx.BatchNorm():
            settings = {
                "epsilon": module.epsilon,
                NEW_SHARE: round(1 - module.momentum, 12),
            }
            return [Layer(name, "batch norm", reshaped(shapes, normalised), settings)]
        case nnx.LayerNorm():
            return [Layer(name, "layer norm", reshaped(shapes, normalised), {"epsilon": module.epsilon})]
        case nnx.GroupNorm():
            settings = {"epsilon": module.epsilon, "groups": module.num_groups}
            return [Layer(name, "group norm", reshaped(shapes, normalised), settings)]
        case nnx.Embed():
            return [Layer(name, "embedding", reshaped(shapes))]
        case nnx.MultiHeadAttention():
            return [attention(name, module)]
        case nnx.PReLU():
            variable, shape = shapes["alpha"]
            return [Layer(name, "prelu", reshaped({"alpha": (variable, shape or (1,))}))]
    return [
        Layer(
            f"{name}.{kind}".strip("."), OWN, reshaped({"value": (variable, tuple(size for size in shape if size > 1))})
        )
        for kind, (variable, shape) in shapes.items()
    ]


def reshaped(
    shapes: dict[str, tuple[nnx.Variable, tuple[int, ...]]], names: Mapping[str, str] = MappingProxyType({})
) -> dict[str, tuple[nnx.Variable, Convert, Convert]]:
    """Parameters whose canonical form has another shape, but the same order of values."""
    return {
        names.get(kind, kind): (
            variable,
            lambda array, shape=shape: array.reshape(shape),
            lambda array, shape=tuple(variable.shape): array.reshape(shape),
        )
        for kind, (variable, shape) in shapes.items()
    }


def mirror(kernel: Array) -> Array:
    return np.flip(kernel, range(kernel.ndim - 2)).swapaxes(-1, -2)


def bias_of(module: Any) -> dict[str, bool]:
    return {"bias": module.use_bias}


def convolution_settings(module: Any) -> dict[str, Any]:
    size = tuple(module.kernel_size) if isinstance(module.kernel_size, tuple | list) else (module.kernel_size,)

    def each(value: Any) -> tuple[int, ...]:
        return tuple(value) if isinstance(value, tuple | list) else (value or 1,) * len(size)

    return {
        "kernel size": size,
        "strides": each(module.strides),
        "dilation": each(module.kernel_dilation),
        "padding": module.padding,
        "bias": module.use_bias,
    }


def attention(name: str, module: nnx.MultiHeadAttention) -> Layer:
    shapes: dict[str, tuple[nnx.Variable, tuple[int, ...]]] = {}
    parts = {"query": module.query, "key": module.key, "value": module.value, "output": module.out}
    for part, of_part in parts.items():
        rows = math.prod(of_part.kernel.shape[:-1]) if part == "output" else of_part.kernel.shape[0]
        shapes[f"{part} kernel"] = of_part.kernel, (rows, math.prod(of_part.kernel.shape) // rows)
        if of_part.bias is not None:
            shapes[f"{part} bias"] = of_part.bias, (math.prod(of_part.bias.shape),)
    return Layer(name, "attention", reshaped(shapes), {"heads": module.num_heads})


# --- The network ---


class Network:
    """See `port.run.Network`."""

    total = staticmethod(jnp.sum)
    biased = True

    def __init__(self, module: ModuleType, batch: Batch, seed: int) -> None:
        del seed  # Flax's are in the user's file
        usual = optax.softmax_cross_entropy_with_integer_labels
        self.loss = loss_of(module, usual)
        self.network: nnx.Module = only_made(module.make_network(batch.images.shape[1:], batch.num_classes))
        for _, variable in nnx.iter_graph(self.network):
            if isinstance(variable, nnx.Param | nnx.BatchStat) and variable.get_value() is not None:
                variable.set_value(variable[...].astype(jnp.float64))
        self.by_module: dict[int, list[Layer]] = {}
        self.rates: dict[int, float] = {}  # of dropout, by module
        self.trace: Trace | None = None
        self.entered: set[int] = set()
        modules = dict(nnx.iter_modules(self.network))
        attentions = [path for path, part in modules.items() if isinstance(part, nnx.MultiHeadAttention)]
        for path, part in modules.items():
            if any(path[: len(outer)] == outer and path != outer for outer in attentions):
                continue  # the network does not call its parts itself
            if isinstance(part, nnx.Dropout | nnx.MultiHeadAttention):
                attribute = "rate" if isinstance(part, nnx.Dropout) else "dropout_rate"
                self.rates[id(part)] = float(vars(part)[attribute])
                setattr(part, attribute, 0.0)
            self.by_module[id(part)] = make_layers(".".join(map(str, path)), part)
        self.layers = {layer.name: layer for layers in self.by_module.values() for layer in layers}
        for kind in {type(part) for part in modules.values()}:
            if "__call__" in dir(kind):
                self.watch(kind)

    def watch(self, kind: Any) -> None:
        """Has every call of a module of this class tell the trace."""
        call = kind.__call__

        def watched_call(module: Any, *args: Any, **options: Any) -> Any:
            trace, layers = self.trace, self.by_module.get(id(module), [])
            if trace is None or id(module) in self.entered:  # by the method of a subclass
                return call(module, *args, **options)
            self.entered.add(id(module))
            deterministic = options.get("deterministic")
            if id(module) in self.rates and not (module.deterministic if deterministic is None else deterministic):
                x = args[0] if args else next(iter(options.values()))
                trace.drop(self.rates[id(module)], None if layers else np.array(x))
            for layer in layers:
                x = args[0] if args else next(iter(options.values()))
                trace.enter(layer, None if layer.kind == OWN else np.array(x))
            output = call(module, *args, **options)
            self.entered.remove(id(module))
            if layers and layers[0].kind != OWN:
                trace.leave(np.array(output))
            return output

        kind.__call__ = watched_call

    def arrays(self) -> Weights:
        """By the names of jax_impl/weights.py, where batch normalisation has canonical names."""
        modules, found = dict(nnx.iter_modules(self.network)), {}
        for path, variable in nnx.iter_graph(self.network):
            if isinstance(variable, nnx.Param | nnx.BatchStat) and variable.get_value() is not None:
                of_norm = isinstance(modules[path[:-1]], nnx.BatchNorm)
                last = {"bias": "offset", "var": "variance"}.get(path[-1], path[-1]) if of_norm else path[-1]
                names = [str(key) for key in (*path[:-1], last) if key != "layers"]
                found[".".join(names)] = np.array(variable[...])
        return found

    def forward(self, images: Array, trace: Trace, training: bool) -> Array:
        if training:
            self.network.train()
        else:
            self.network.eval()
        self.trace = trace
        output = only_logits(self.network(jnp.asarray(images)))
        self.trace = None
        return np.array(output)

    def gradients(self, images: Array, labels: Array) -> tuple[float, dict[str, Weights]]:
        self.network.train()

        def loss_of_network(network: Any) -> jax.Array:
            return self.loss(network(jnp.asarray(images)), jnp.asarray(labels)).mean()

        loss, gradients = nnx.value_and_grad(loss_of_network)(self.network)
        by_path = dict(nnx.to_flat_state(gradients))
        paths = {id(node): path for path, node in nnx.iter_graph(self.network) if isinstance(node, nnx.Param)}
        return float(loss), {
            name: {
                kind: to(np.array(by_path[paths[id(variable)]][...]))
                for kind, (variable, to, _) in layer.parameters.items()
                if paths.get(id(variable)) in by_path
            }
            for name, layer in self.layers.items()
        }

    def losses(self, outputs: Array, labels: Array) -> tuple[Array, Array]:
        losses, pass_back = jax.vjp(lambda given: self.loss(given, jnp.asarray(labels)), jnp.asarray(outputs))
        return np.array(losses), np.array(*pass_back(jnp.ones_like(losses)))


if __name__ == "__main__":
    main(Network, "jax.py")
