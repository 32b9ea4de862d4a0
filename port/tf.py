"""A network of Keras layers on TensorFlow, as the check of a port sees it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from port.match import NEW_SHARE, OWN, Array, Trace, Weights
from port.run import Batch, loss_of, main, only_logits, only_made
from tf_impl.networks import DROPOUTS, parts_of

NAMES = {"gamma": "scale", "beta": "offset", "moving_mean": "mean", "moving_variance": "variance"}
NAMES |= {"embeddings": "kernel", "depthwise_kernel": "kernel"}


@dataclass
class Layer:
    """`parameters`: canonical kind -> variable, and the canonical shape of its value."""

    name: str
    kind: str
    parameters: dict[str, tuple[keras.Variable, tuple[int, ...]]]
    settings: dict[str, Any] = field(default_factory=dict)

    def get(self) -> Weights:
        return {kind: np.array(variable).reshape(shape) for kind, (variable, shape) in self.parameters.items()}

    def set(self, weights: Weights) -> None:
        for kind, (variable, _) in self.parameters.items():
            variable.assign(weights[kind].reshape(variable.shape))


def make_layers(layer: keras.Layer, name: str, own: list[keras.Variable]) -> list[Layer]:
    """The layer with its own variables: two for a separable convolution, one a variable for a class of the user's."""
    shapes = {NAMES.get(variable.name, variable.name): (variable, tuple(variable.shape)) for variable in own}
    match layer:
        case layers.SeparableConv1D() | layers.SeparableConv2D():
            first, (point, shape) = shapes.pop("kernel"), shapes.pop("pointwise_kernel")
            depthwise = {"kernel": (first[0], depthwise_shape(first[1]))}
            pointwise = {"kernel": (point, shape[-2:]), **shapes}
            settings = {**convolution_settings(layer), "groups": first[1][-2], "bias": False}
            return [
                Layer(f"{name}/depthwise", "conv", depthwise, settings),
                Layer(f"{name}/pointwise", "dense", pointwise, {"bias": layer.use_bias}),
            ]
        case layers.DepthwiseConv1D() | layers.DepthwiseConv2D():
            variable, shape = shapes["kernel"]
            shapes["kernel"] = variable, depthwise_shape(shape)
            return [Layer(name, "conv", shapes, {**convolution_settings(layer), "groups": shape[-2]})]
        case layers.Conv1DTranspose() | layers.Conv2DTranspose():
            return [Layer(name, "conv transpose", shapes, convolution_settings(layer))]
        case layers.Conv1D() | layers.Conv2D() | layers.Conv3D():
            variable, shape = shapes["kernel"]
            if {*layer.kernel_size, *layer.strides, layer.groups} == {1}:  # a dense layer of each position
                shapes["kernel"] = variable, shape[-2:]
                return [Layer(name, "dense", shapes, {"bias": layer.use_bias})]
            return [Layer(name, "conv", shapes, {**convolution_settings(layer), "groups": layer.groups})]
        case layers.Dense():
            return [Layer(name, "dense", shapes, {"bias": layer.use_bias})]
        case layers.BatchNormalization():
            settings = {
                "epsilon": layer.epsilon,
                NEW_SHARE: round(1 - layer.momentum, 12),
            }
            return [Layer(name, "batch norm", shapes, settings)]
        case layers.LayerNormalization():
            return [Layer(name, "layer norm", shapes, {"epsilon": layer.epsilon})]
        case layers.GroupNormalization():
            return [Layer(name, "group norm", shapes, {"epsilon": layer.epsilon, "groups": layer.groups})]
        case layers.Embedding():
            return [Layer(name, "embedding", shapes)]
        case layers.PReLU():
            variable, shape = shapes["alpha"]
            return [Layer(name, "prelu", {"alpha": (variable, tuple(size for size in shape if size > 1) or (1,))})]
        case layers.MultiHeadAttention():
            return [attention(layer, name)]
    return [
        Layer(f"{name}/{kind}", OWN, {"value": (variable, tuple(size for size in shape if size > 1))})
        for kind, (variable, shape) in shapes.items()
    ]


def depthwise_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """(height, width, in, multiplier) -> (height, width, 1, in * multiplier), a convolution with `in` groups."""
    return (*shape[:-2], 1, shape[-2] * shape[-1])


def convolution_settings(layer: Any) -> dict[str, Any]:
    return {
        "strides": tuple(layer.strides),
        "dilation": tuple(layer.dilation_rate),
        "padding": layer.padding,
        "bias": layer.use_bias,
    }


def attention(layer: layers.MultiHeadAttention, name: str) -> Layer:
    parameters = {}
    for variable in layer.trainable_variables:
        part, kind = variable.path.split("/")[-2:]
        part = "output" if "output" in part else part
        rows = variable.shape[0] if part != "output" else int(np.prod(variable.shape[:-1]))
        shape = (rows, int(np.prod(variable.shape)) // rows) if kind == "kernel" else (int(np.prod(variable.shape)),)
        parameters[f"{part} {kind}"] = variable, shape
    return Layer(name, "attention", parameters, {"heads": layer.num_heads})


# --- The network ---


class Network:
    """See `port.run.Network`."""

    total = staticmethod(tf.reduce_sum)
    biased = True

    def __init__(self, module: ModuleType, batch: Batch, seed: int) -> None:
        keras.config.set_floatx("float64")
        keras.config.set_dtype_policy("float64")
        keras.utils.set_random_seed(seed % 2**32)
        usual = keras.losses.sparse_categorical_crossentropy
        self.loss = loss_of(module, lambda outputs, labels: usual(labels, outputs, from_logits=True))
        self.network = only_made(module.make_network(tuple(batch.images.shape[1:]), batch.num_classes))
        self.network(ops.convert_to_tensor(batch.images))  # makes the weights of layers that don't have them yet
        self.layers: dict[str, Layer] = {}
        self.trace: Trace | None = None
        self.wrap(self.network, "", set())

    def wrap(self, layer: keras.Layer, prefix: str, seen: set[int]) -> None:
        """Has every call of the layer, and of those inside of it, tell the trace."""
        if id(layer) in seen:
            return
        seen.add(id(layer))
        parts = list(dict.fromkeys(parts_of(layer)))
        inner = {id(variable) for part in parts for variable in part.variables}
        own = [variable for variable in layer.variables if id(variable) not in inner and variable.dtype == "float64"]
        name = f"{prefix}{layer.name}"
        if isinstance(layer, DROPOUTS):
            layer.call = self.dropping(layer, layer.call)
        made = make_layers(layer, name, own)
        self.layers |= {of_part.name: of_part for of_part in made}
        if isinstance(layer, layers.MultiHeadAttention):
            for part in vars(layer).values():
                if isinstance(part, layers.Dropout):
                    part.call = self.dropping(part, part.call, tells_values=False)
        if made or not parts:
            layer.call = self.watched(layer, made, layer.call)
        for part in parts:
            self.wrap(part, "" if layer is self.network else f"{name}/", seen)

    def dropping(self, layer: Any, call: Callable[..., Any], tells_values: bool = True) -> Callable[..., Any]:
        """Has dropout drop nothing, but tell the trace."""
        rate, layer.rate = float(layer.rate), 0

        def watched_call(x: Any, training: bool = False, **options: Any) -> Any:
            if training and self.trace is not None:
                self.trace.drop(rate, np.array(x) if tells_values else None)
            return call(x, training=training, **options)

        return watched_call

    def watched(self, layer: Any, made: list[Layer], call: Callable[..., Any]) -> Callable[..., Any]:
        before_activation: list[Any] = []
        if made and callable(vars(layer).get("activation")) and made[-1].kind in ("conv", "conv transpose", "dense"):
            activation = layer.activation

            def keep(value: Any) -> Any:
                before_activation.append(value)
                return activation(value)

            layer.activation = keep

        def watched_call(*args: Any, **options: Any) -> Any:
            if self.trace is None:
                return call(*args, **options)
            trace, x = self.trace, args[0] if args else next(iter(options.values()))
            if made and made[0].kind == OWN:
                for part in made:
                    trace.enter(part, None)
                return call(*args, **options)
            if len(made) == 2:  # a separable convolution
                trace.enter(made[0], np.array(x))
                how = layer.strides, layer.padding, None, layer.dilation_rate
                between = ops.depthwise_conv(x, layer.depthwise_kernel, *how)
                trace.leave(np.array(between))
                x = between
            if made:
                trace.enter(made[-1], np.array(x[0] if isinstance(x, tuple | list) else x))
            before_activation.clear()
            output = call(*args, **options)
            whole = before_activation[-1] if before_activation else output
            whole = whole[0] if isinstance(whole, tuple | list) else whole
            if made:
                trace.leave(np.array(whole))
            elif isinstance(output, tf.Tensor):
                trace.see(tuple(output.shape))
            return output

        return watched_call

    def arrays(self) -> Weights:
        return {str(number): np.array(variable) for number, variable in enumerate(self.network.weights)}

    def forward(self, images: Array, trace: Trace, training: bool) -> Array:
        self.trace = trace
        output = only_logits(self.network(ops.convert_to_tensor(images), training=training))
        self.trace = None
        return np.array(output)

    def gradients(self, images: Array, labels: Array) -> tuple[float, dict[str, Weights]]:
        with tf.GradientTape() as tape:
            outputs = self.network(ops.convert_to_tensor(images), training=True)
            loss = tf.reduce_mean(self.loss(outputs, ops.convert_to_tensor(labels)))
        trained = self.network.trainable_variables
        gradients = dict(zip(map(id, trained), tape.gradient(loss, trained), strict=True))
        return float(loss), {
            name: {
                kind: np.array(tf.convert_to_tensor(gradients[id(variable)])).reshape(shape)
                for kind, (variable, shape) in layer.parameters.items()
                if gradients.get(id(variable)) is not None
            }
            for name, layer in self.layers.items()
        }

    def losses(self, outputs: Array, labels: Array) -> tuple[Array, Array]:
        with tf.GradientTape() as tape:
            tape.watch(given := ops.convert_to_tensor(outputs))
            losses = self.loss(given, ops.convert_to_tensor(labels))
        return np.array(losses), np.array(tape.gradient(losses, given))


if __name__ == "__main__":
    main(Network, "tf.py")
