"""Weights in Keras; their names and layouts are the canonical ones."""

from collections.abc import Iterator
from contextlib import contextmanager

import keras

from common.spec.networks import Weights


def load_weights(network: keras.Model, weights: Weights) -> None:
    """Sets every parameter from canonical arrays, cast to the network's precision."""
    for name, variable in named_arrays(network).items():
        variable.assign(weights[name])


def get_weights(network: keras.Model) -> Weights:
    """Canonical name -> array in the network's precision."""
    return {name: variable.numpy() for name, variable in named_arrays(network).items()}


def named_arrays(network: keras.Model) -> dict[str, keras.Variable]:
    """Canonical name -> variable, including the statistics of batch normalisation."""
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
    """Canonical name -> trained variable, in the order of `network.trainable_variables`."""
    return {name: variable for name, variable in named_arrays(network).items() if variable.trainable}


@contextmanager
def statistics_kept(network: keras.Model) -> Iterator[None]:
    """Restores the network's running statistics at the end of the context."""
    before = [variable.numpy() for variable in network.non_trainable_variables]
    yield
    for variable, array in zip(network.non_trainable_variables, before, strict=True):
        variable.assign(array)
