"""A network of Flax NNX modules, as the check of a port sees it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from port.layers import (
    NEW_SHARE,
    OWN_PARAMETER,
    Array,
    Layer,
    LayerParameters,
    Weights,
    as_it_is,
    without_heads,
    without_unit_axes,
)
from port.network import Network, Probe
from port.run import main

jax.config.update("jax_enable_x64", True)

ARRAY_KINDS = {"var": "variance", "embedding": "kernel"}
NAMES_IN_NORMS = {"bias": "offset", "var": "variance"}


@dataclass
class FlaxLayer(Layer):
    @staticmethod
    def read(variable: nnx.Variable) -> Array:
        return np.array(variable[...])

    @staticmethod
    def write(variable: nnx.Variable, array: Array) -> None:
        variable.set_value(jnp.asarray(array))


def make_layers(name: str, module: nnx.Module) -> list[Layer]:
    """The layer of a module with its own parameters; one for each of them if its class is the user's."""
    own = {key: value for key, value in vars(module).items() if is_nnx_parameter(value)}
    match module:
        case nnx.Conv():
            kind, settings = "conv", {**convolution_settings(module), "groups": module.feature_group_count}
        case nnx.ConvTranspose():
            kind, settings = "conv transpose", convolution_settings(module)
        case nnx.Linear():
            kind, settings = "dense", {}
        case nnx.BatchNorm():
            kind, settings = "batch norm", {"epsilon": module.epsilon, NEW_SHARE: round(1 - module.momentum, 12)}
        case nnx.LayerNorm():
            kind, settings = "layer norm", {"epsilon": module.epsilon}
        case nnx.GroupNorm():
            kind, settings = "group norm", {"epsilon": module.epsilon, "groups": module.num_groups}
        case nnx.Embed():
            kind, settings = "embedding", {}
        case nnx.MultiHeadAttention():
            return [FlaxLayer(name, "attention", attention_parameters(module), {"heads": module.num_heads})]
        case nnx.PReLU():
            return [FlaxLayer(name, "prelu", {"alpha": (module.negative_slope, without_unit_axes)})]
        case _:
            own_layers = [(f"{name}.{ARRAY_KINDS.get(key, key)}".strip("."), value) for key, value in own.items()]
            return [
                FlaxLayer(of_own, OWN_PARAMETER, {"value": (value, without_unit_axes)}) for of_own, value in own_layers
            ]
    names = NAMES_IN_NORMS if "norm" in kind else ARRAY_KINDS
    parameters: LayerParameters = {names.get(key, key): (value, as_it_is) for key, value in own.items()}
    if kind == "conv transpose" and not module.transpose_kernel:
        parameters["kernel"] = module.kernel, mirrored_kernel
    return [FlaxLayer(name, kind, parameters, settings)]


def is_nnx_parameter(value: Any) -> bool:
    return isinstance(value, nnx.Param | nnx.BatchStat) and value.get_value() is not None


def mirrored_kernel(kernel: Array) -> Array:
    """Flax does not mirror the kernel, as the gradient of a convolution does, and has (height, width, in, out)."""
    return np.flip(kernel, range(kernel.ndim - 2)).swapaxes(-1, -2)


def convolution_settings(module: Any) -> dict[str, Any]:
    axes = module.kernel.ndim - 2

    def each(value: Any) -> tuple[int, ...]:
        return tuple(value) if isinstance(value, tuple | list) else (value or 1,) * axes

    return {"strides": each(module.strides), "dilation": each(module.kernel_dilation), "padding": module.padding}


def attention_parameters(module: nnx.MultiHeadAttention) -> LayerParameters:
    parameters: LayerParameters = {}
    parts = {"query": module.query, "key": module.key, "value": module.value, "output": module.out}
    for part, of_part in parts.items():
        for kind in ("kernel", "bias"):
            if getattr(of_part, kind) is not None:
                parameters[f"{part} {kind}"] = getattr(of_part, kind), without_heads(part, kind)
    return parameters


def attention_in_64_bits(*arrays: jax.Array, **options: Any) -> jax.Array:
    """Flax's attention by its formula; where nothing drops it calls a function of JAX that computes in 32 bits."""
    return nnx.dot_product_attention(*arrays, **options | {"dropout_rate": 0.5, "deterministic": True})


# --- The network ---


class FlaxNetwork(Network):
    """See `Network`."""

    biased = True

    def __init__(self, module: ModuleType, probe: Probe, seed: int) -> None:
        super().__init__(module, probe, seed)
        for _, variable in self.variables():
            variable.set_value(variable[...].astype(jnp.float64))
        self.by_module: dict[int, list[Layer]] = {}
        self.rates: dict[int, float] = {}  # of dropout, by module
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
            if isinstance(part, nnx.MultiHeadAttention) and part.attention_fn is nnx.dot_product_attention:
                part.attention_fn = attention_in_64_bits
            self.by_module[id(part)] = make_layers(".".join(map(str, path)), part)
        self.layers = {layer.name: layer for layers in self.by_module.values() for layer in layers}
        for kind in {type(part) for part in modules.values()}:
            if "__call__" in dir(kind):
                self.watch(kind)

    @staticmethod
    def set_up(seed: int) -> None:
        """Nothing: 64 bits are set above, before the user's file is read, which has its seeds."""

    @staticmethod
    def cross_entropy(outputs: jax.Array, labels: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(outputs, labels)

    def variables(self) -> Iterator[tuple[tuple[Any, ...], nnx.Variable]]:
        """All parameters, with their paths."""
        return ((path, node) for path, node in nnx.iter_graph(self.network) if is_nnx_parameter(node))

    def watch(self, kind: Any) -> None:
        """Has every call of a module of this class tell the execution."""
        call = kind.__call__

        def watched_call(module: Any, *args: Any, **options: Any) -> Any:
            execution, layers = self.execution, self.by_module.get(id(module), [])
            if execution is None or id(module) in self.entered:  # by the method of a subclass
                return call(module, *args, **options)
            self.entered.add(id(module))
            deterministic = options.get("deterministic")
            x = args[0] if args else next(iter(options.values()), None)
            if id(module) in self.rates and not (module.deterministic if deterministic is None else deterministic):
                execution.drop(self.rates[id(module)], None if layers else np.array(x))
            for layer in layers:
                execution.enter(layer, None if layer.kind == OWN_PARAMETER else np.array(x))
            output = call(module, *args, **options)
            self.entered.remove(id(module))
            if layers and layers[0].kind != OWN_PARAMETER:
                execution.leave(np.array(output))
            return output

        kind.__call__ = watched_call

    def arrays(self) -> Weights:
        """By the names of jax_impl/weights.py, where batch normalisation has canonical names."""
        modules, arrays = dict(nnx.iter_modules(self.network)), {}
        for path, variable in self.variables():
            of_norm = isinstance(modules[path[:-1]], nnx.BatchNorm)
            last = NAMES_IN_NORMS.get(path[-1], path[-1]) if of_norm else path[-1]
            names = [str(key) for key in (*path[:-1], last) if key != "layers"]
            arrays[".".join(names)] = np.array(variable[...])
        return arrays

    def outputs(self, images: Array, training: bool) -> Any:
        if training:
            self.network.train()
        else:
            self.network.eval()
        return self.network(jnp.asarray(images))

    def gradients_of_variables(self, images: Array, labels: Array, loss: Callable[..., Any]) -> tuple[Any, Any]:
        self.network.train()

        def loss_of_network(network: Any) -> jax.Array:
            return loss(network(jnp.asarray(images)), jnp.asarray(labels)).mean()

        value, gradients = nnx.value_and_grad(loss_of_network)(self.network)
        by_path = dict(nnx.to_flat_state(gradients))
        trained = [(path, variable) for path, variable in self.variables() if path in by_path]
        return value, {id(variable): np.array(by_path[path][...]) for path, variable in trained}

    def losses(self, outputs: Array, labels: Array) -> tuple[Array, Array]:
        losses, pass_back = jax.vjp(lambda given: self.loss(given, jnp.asarray(labels)), jnp.asarray(outputs))
        return np.array(losses), np.array(*pass_back(jnp.ones_like(losses)))


if __name__ == "__main__":
    main(FlaxNetwork, "jax.py")
