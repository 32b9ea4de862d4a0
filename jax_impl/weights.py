"""Weights in Flax NNX; their names and layouts are the canonical ones."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils
from numpy.typing import NDArray

from common.spec.networks import Weights
from common.spec.own_network import to_canonical, to_native


def load_weights(network: nnx.Module, weights: Weights) -> None:
    """Sets every parameter from canonical arrays, cast to the network's precision."""
    assign_variables(named_arrays(network), to_native(network.layout, weights))


def get_weights(network: nnx.Module) -> Weights:
    """Canonical name -> array in the network's precision. Every process must call it: each may have only a part."""
    return to_canonical(network.layout, to_arrays(named_arrays(network)))


def named_arrays(network: nnx.Module, kind: Any = (nnx.Param, nnx.BatchStat)) -> dict[str, nnx.Variable]:
    """Canonical name -> variable of this kind; by default including the statistics of batch normalisation.

    In a network of the user's the name is that of its path; `layout` says which canonical values the variable has.
    """
    return {canonical_name(path): variable for path, variable in variables(network, kind)}


def canonical_name(path: tuple[Any, ...]) -> str:
    """Canonical name of the parameter at a path in a network."""
    return ".".join(str(key) for key in path if key != "layers")


def variables(module: Any, kind: Any) -> Iterable[tuple[tuple[Any, ...], nnx.Variable]]:
    """The variables of a kind, which are a part of the module and can be assigned to, with their paths."""
    return [(path, node) for path, node in nnx.iter_graph(module) if isinstance(node, kind)]


def assign_variables(variables: dict[str, nnx.Variable], arrays: Weights) -> None:
    """Gives variables values from canonical arrays, with the dtype and on the devices that they have."""
    for name, variable in variables.items():
        if name not in arrays:  # a network of the user's may have unused layers
            continue
        old = variable[...]
        variable[...] = jax.device_put(arrays[name].astype(old.dtype), old.sharding)


def to_arrays(variables: dict[str, nnx.Variable]) -> Weights:
    """Copies of the variables' values. Every process must call it: each may have only a part."""
    return {name: to_host(variable[...]) for name, variable in variables.items()}


def to_host(array: jax.Array) -> NDArray[Any]:
    """A copy of the whole array, of which other processes may have parts: then all of them must call it."""
    if not array.is_fully_addressable and not array.is_fully_replicated:
        return np.array(multihost_utils.process_allgather(array, tiled=True))
    return np.array(array)


def place_module(module: nnx.Module, sharding_of: Callable[[jax.Array], jax.sharding.Sharding]) -> None:
    """Puts every array of a module on the devices that `sharding_of` names."""

    def placed(array: jax.Array) -> jax.Array:
        if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):  # of dropout in a network of the user's
            return jax.device_put(array, sharding_of(array))
        return put_array(np.array(array), sharding_of(array))

    nnx.update(module, jax.tree.map(placed, nnx.state(module)))


def put_array(array: NDArray[Any], sharding: jax.sharding.Sharding) -> jax.Array:
    """The array on all devices of the run. Every process must have the whole of it."""
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
