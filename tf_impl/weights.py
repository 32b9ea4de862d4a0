"""Weights in Keras, whose names and layout are the canonical ones."""

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
    """Canonical name -> variable, the statistics of batch normalisation among them."""
    return {f"{layer.name}.{variable.name}": variable for layer in network.layers for variable in layer.variables}


def named_parameters(network: keras.Model) -> dict[str, keras.Variable]:
    """Of these, what is trained, in the order of `network.trainable_variables`."""
    return {name: variable for name, variable in named_arrays(network).items() if variable.trainable}


@contextmanager
def statistics_kept(network: keras.Model) -> Iterator[None]:
    """What the network sees meanwhile leaves its running statistics as they were."""
    before = [variable.numpy() for variable in network.non_trainable_variables]
    yield
    for variable, array in zip(network.non_trainable_variables, before, strict=True):
        variable.assign(array)
