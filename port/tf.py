"""A network of Keras layers on TensorFlow, as the check of a port sees it."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

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
from tf_impl.networks import DROPOUTS, parts_of

ARRAY_KINDS = {"gamma": "scale", "beta": "offset", "moving_mean": "mean", "moving_variance": "variance"}
ARRAY_KINDS |= {"embeddings": "kernel", "depthwise_kernel": "kernel"}


@dataclass
class KerasLayer(Layer):
    @staticmethod
    def read(variable: keras.Variable) -> Array:
        return np.array(variable)

    @staticmethod
    def write(variable: keras.Variable, array: Array) -> None:
        variable.assign(array)


def make_layers(name: str, layer: keras.Layer, own: list[keras.Variable]) -> list[Layer]:
    """The layer with its own variables: two for a separable convolution, one a variable for a class of the user's."""
    parameters: LayerParameters = {
        ARRAY_KINDS.get(variable.name, variable.name): (variable, as_it_is) for variable in own
    }
    match layer:
        case layers.SeparableConv1D() | layers.SeparableConv2D():
            depthwise = depthwise_convolution(f"{name}/depthwise", layer, {"kernel": parameters.pop("kernel")})
            variable, _ = parameters.pop("pointwise_kernel")
            kernel = variable, lambda array: array.reshape(array.shape[-2:])
            return [depthwise, KerasLayer(f"{name}/pointwise", "dense", {"kernel": kernel, **parameters})]
        case layers.DepthwiseConv1D() | layers.DepthwiseConv2D():
            return [depthwise_convolution(name, layer, parameters)]
        case layers.Conv1DTranspose() | layers.Conv2DTranspose():
            kind, settings = "conv transpose", convolution_settings(layer)
        case layers.Conv1D() | layers.Conv2D() | layers.Conv3D():
            kind, settings = "conv", {**convolution_settings(layer), "groups": layer.groups}
        case layers.Dense():
            kind, settings = "dense", {}
        case layers.BatchNormalization():
            kind, settings = "batch norm", {"epsilon": layer.epsilon, NEW_SHARE: round(1 - layer.momentum, 12)}
        case layers.LayerNormalization():
            kind, settings = "layer norm", {"epsilon": layer.epsilon}
        case layers.GroupNormalization():
            kind, settings = "group norm", {"epsilon": layer.epsilon, "groups": layer.groups}
        case layers.Embedding():
            kind, settings = "embedding", {}
        case layers.MultiHeadAttention():
            kind, settings, parameters = "attention", {"heads": layer.num_heads}, attention_parameters(layer)
        case layers.PReLU():
            kind, settings, parameters = "prelu", {}, {"alpha": (layer.alpha, without_unit_axes)}
        case _:
            return [
                KerasLayer(f"{name}/{key}", OWN_PARAMETER, {"value": (value, without_unit_axes)})
                for key, (value, _) in parameters.items()
            ]
    return [KerasLayer(name, kind, parameters, settings)]


def depthwise_convolution(name: str, layer: Any, parameters: LayerParameters) -> Layer:
    """With (height, width, in, multiplier) -> (height, width, 1, in * multiplier): a convolution with `in` groups."""
    variable, _ = parameters["kernel"]
    kernel = variable, lambda array: array.reshape(*array.shape[:-2], 1, -1)
    settings = {**convolution_settings(layer), "groups": variable.shape[-2]}
    return KerasLayer(name, "conv", {**parameters, "kernel": kernel}, settings)


def convolution_settings(layer: Any) -> dict[str, Any]:
    return {"strides": tuple(layer.strides), "dilation": tuple(layer.dilation_rate), "padding": layer.padding}


def attention_parameters(layer: layers.MultiHeadAttention) -> LayerParameters:
    parameters: LayerParameters = {}
    for variable in layer.trainable_variables:
        part, kind = variable.path.split("/")[-2:]
        part = "output" if "output" in part else part
        parameters[f"{part} {kind}"] = variable, without_heads(part, kind)
    return parameters


# --- The network ---


class KerasNetwork(Network):
    """See `Network`."""

    biased = True

    def __init__(self, module: ModuleType, probe: Probe, seed: int) -> None:
        super().__init__(module, probe, seed)
        self.network(ops.convert_to_tensor(probe.images))  # makes the weights of layers that don't have them yet
        self.watch(self.network, "", set())

    @staticmethod
    def set_up(seed: int) -> None:
        keras.config.set_floatx("float64")
        keras.config.set_dtype_policy("float64")
        keras.utils.set_random_seed(seed % 2**32)

    @staticmethod
    def cross_entropy(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)

    def watch(self, layer: keras.Layer, prefix: str, seen: set[int]) -> None:
        """Has every call of the layer, and of those inside of it, tell the execution."""
        if id(layer) in seen:
            return
        seen.add(id(layer))
        parts = list(dict.fromkeys(parts_of(layer)))
        inner = {id(variable) for part in parts for variable in part.variables}
        own = [variable for variable in layer.variables if id(variable) not in inner and variable.dtype == "float64"]
        name = f"{prefix}{layer.name}"
        made = make_layers(name, layer, own)
        self.layers |= {of_part.name: of_part for of_part in made}
        if isinstance(layer, DROPOUTS):
            layer.call = self.dropping(layer, layer.call)
        if isinstance(layer, layers.MultiHeadAttention):
            for part in vars(layer).values():
                if isinstance(part, layers.Dropout):
                    part.call = self.dropping(part, part.call, tells_values=False)
        if made:
            layer.call = self.telling(layer, made, layer.call)
        for part in parts:
            self.watch(part, "" if layer is self.network else f"{name}/", seen)

    def dropping(self, layer: Any, call: Callable[..., Any], tells_values: bool = True) -> Callable[..., Any]:
        """Has dropout drop nothing, but tell the execution."""
        rate, layer.rate = float(layer.rate), 0

        def watched_call(x: Any, training: bool = False, **options: Any) -> Any:
            if training and self.execution is not None:
                self.execution.drop(rate, np.array(x) if tells_values else None)
            return call(x, training=training, **options)

        return watched_call

    def telling(self, layer: Any, made: list[Layer], call: Callable[..., Any]) -> Callable[..., Any]:
        """Has a call of the layer tell the execution; `made`: what `make_layers` has made of it."""
        before_activation: list[Any] = []
        if made[-1].kind in ("conv", "conv transpose", "dense") and callable(vars(layer).get("activation")):
            activation = layer.activation

            def keep(value: Any) -> Any:
                before_activation.append(value)
                return activation(value)

            layer.activation = keep

        def watched_call(*args: Any, **options: Any) -> Any:
            execution = self.execution
            if execution is None:
                return call(*args, **options)
            if made[0].kind == OWN_PARAMETER:
                for part in made:
                    execution.enter(part, None)
                return call(*args, **options)
            x = first_of(args[0] if args else next(iter(options.values())))
            execution.enter(made[0], np.array(x))
            if len(made) == 2:  # a separable convolution
                how = layer.strides, layer.padding, None, layer.dilation_rate
                between = np.array(ops.depthwise_conv(x, layer.depthwise_kernel, *how))
                execution.leave(between)
                execution.enter(made[1], between)
            before_activation.clear()
            output = call(*args, **options)
            execution.leave(np.array(before_activation[-1] if before_activation else first_of(output)))
            return output

        return watched_call

    def arrays(self) -> Weights:
        return {str(number): np.array(variable) for number, variable in enumerate(self.network.weights)}

    def outputs(self, images: Array, training: bool) -> Any:
        return self.network(ops.convert_to_tensor(images), training=training)

    def gradients_of_variables(self, images: Array, labels: Array, loss: Callable[..., Any]) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            outputs = self.network(ops.convert_to_tensor(images), training=True)
            value = tf.reduce_mean(loss(outputs, ops.convert_to_tensor(labels)))
        trained = self.network.trainable_variables
        gradients = zip(trained, tape.gradient(value, trained), strict=True)
        return value, {
            id(variable): np.array(tf.convert_to_tensor(gradient))
            for variable, gradient in gradients
            if gradient is not None
        }

    def losses(self, outputs: Array, labels: Array) -> tuple[Array, Array]:
        with tf.GradientTape() as tape:
            tape.watch(given := ops.convert_to_tensor(outputs))
            losses = self.loss(given, ops.convert_to_tensor(labels))
        return np.array(losses), np.array(tape.gradient(losses, given))


def first_of(values: Any) -> Any:
    """The first of several inputs or outputs."""
    return values[0] if isinstance(values, tuple | list) else values


if __name__ == "__main__":
    main(KerasNetwork, "tf.py")
