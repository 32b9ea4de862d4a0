"""Weights in Keras, whose names and layout are the canonical ones."""

import keras

from common.spec.networks import Weights


def load_weights(network: keras.Model, weights: Weights) -> None:
    """Sets every parameter from canonical arrays, cast to the network's precision."""
    for name, variable in named_parameters(network).items():
        variable.assign(weights[name])


def get_weights(network: keras.Model) -> Weights:
    """Canonical name -> array in the network's precision."""
    return {name: variable.numpy() for name, variable in named_parameters(network).items()}


def named_parameters(network: keras.Model) -> dict[str, keras.Variable]:
    """Canonical name -> variable, in the order of `network.trainable_variables`."""
    return {
        f"{layer.name}.{variable.name}": variable for layer in network.layers for variable in layer.trainable_variables
    }
