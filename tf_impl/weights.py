"""Weights in Keras; their names and layouts are the canonical ones."""

from collections.abc import Iterator
from contextlib import contextmanager

import keras

from common.spec.networks import Weights
from common.spec.own_network import to_canonical, to_native


def load_weights(network: keras.Model, weights: Weights) -> None:
    """Sets every parameter from canonical arrays, cast to the network's precision."""
    arrays = to_native(network.layout, weights)
    for name, variable in named_arrays(network).items():
        if name in arrays:  # a network of the user's may have unused layers
            variable.assign(arrays[name])


def get_weights(network: keras.Model) -> Weights:
    """Canonical name -> array in the network's precision."""
    return to_canonical(network.layout, {name: variable.numpy() for name, variable in named_arrays(network).items()})


def named_arrays(network: keras.Model) -> dict[str, keras.Variable]:
    """Canonical name -> variable, including the statistics of batch normalisation.

    In a network of the user's the name is the variable's number; `layout` says which canonical values it has.
    """
    if network.layout:
        return {str(number): variable for number, variable in enumerate(network.weights)}
    return {
        f"{canonical_name(layer)}.{variable.name}": variable for layer in network.layers for variable in layer.variables
    }


def canonical_name(layer: keras.Layer) -> str:
    """The canonical name of a layer, whose name in Keras has an underscore for each dot, see networks/resnet/tf.py."""
    return layer.name.replace("_", ".")


def keras_name(layer: str) -> str:
    """The name in Keras of the layer with this canonical name."""
    return layer.replace(".", "_")


def named_parameters(network: keras.Model) -> dict[str, keras.Variable]:
    """Name in `named_arrays` -> trained variable, in the order of `network.trainable_variables`."""
    names = {id(variable): name for name, variable in named_arrays(network).items()}
    return {names[id(variable)]: variable for variable in network.trainable_variables}


@contextmanager
def statistics_kept(network: keras.Model) -> Iterator[None]:
    """Restores the network's running statistics at the end of the context."""
    before = [variable.numpy() for variable in network.non_trainable_variables]
    yield
    for variable, array in zip(network.non_trainable_variables, before, strict=True):
        variable.assign(array)
