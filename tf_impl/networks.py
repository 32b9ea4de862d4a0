"""The networks in Keras, on any backend; their layouts are the canonical ones: NHWC, HWIO kernels, (in, out) dense.

A network is made by `tf.py` of its folder in networks/. For the lockstep some of its layers are replaced here.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras import layers, ops

from common.spec.networks import NetworkSpec
from common.spec.options import TrainConfig
from common.spec.randomness import FIRST_DROPOUT, RATE_RESOLUTION, dropout_threshold
from tf_impl.randomness import philox, shifted_right

# The dtype of weights, normalised images and losses; and Keras's policy for the dtype that layers compute in.
DTYPES = {"32": "float32", "64": "float64", "bf16-mixed": "float32", "16-mixed": "float32"}
POLICIES = {"32": "float32", "64": "float64", "bf16-mixed": "mixed_bfloat16", "16-mixed": "mixed_float16"}

DROPOUTS = layers.Dropout, layers.SpatialDropout1D, layers.SpatialDropout2D, layers.SpatialDropout3D
DROPOUTS += layers.GaussianDropout, layers.AlphaDropout
BACKEND = keras.backend.backend()
SumOverReplicas = Callable[[Any], Any]  # from a replica's numbers to their sum over all replicas
Losses = Callable[[Any, Any], Any]  # from labels (n,) and logits (n, classes) to losses (n,)


def make_network(spec: NetworkSpec, config: TrainConfig, total: SumOverReplicas | None = None) -> keras.Model:
    """The network of `spec`, from its inputs, see `Batch`, to logits (N, classes), in the run's precision.

    `total`: for `--sync-batchnorm`; None if there is one replica.
    """
    keras.config.set_dtype_policy(POLICIES[config.precision])
    keras.config.set_floatx(DTYPES[config.precision])  # of keras.Input and of fit's arrays, which don't ask the policy
    if spec.is_own:
        keras.utils.set_random_seed(config.seed % 2**32)  # for its own dropout
    network: keras.Model = spec.make_in("tf")
    if spec.is_own and config.verify_steps is not None:  # a proof
        drop_nothing(network)
    if spec.is_own and not network.built:  # a class's layers get their weights in the first call
        network(ops.zeros((1, *spec.image_shape)))
    if spec.drops:
        network = with_visits(network, config.seed)
    elif hasattr(network, "inputs"):  # Keras can't exchange the layers of a class of the user's
        network = with_own_layers(network, total if config.sync_batchnorm else None, spec.is_own)
    network.layout = spec.layout_in("tf")
    return network


def with_own_layers(network: keras.Model, total: SumOverReplicas | None, keep_others: bool) -> keras.Model:
    """The network with layers from below where Keras's compute something else.

    `keep_others`: instead of copies, which only classes with `get_config` have.
    """
    own = {layer.name: new for layer in network.layers if (new := layer_in_lockstep(layer, total))}
    if not own:
        return network
    copy = (lambda layer: layer) if keep_others else copy_of
    return keras.models.clone_model(network, clone_function=lambda layer: own.get(layer.name) or copy(layer))


def layer_in_lockstep(layer: keras.Layer, total: SumOverReplicas | None = None) -> keras.Layer | None:
    """A layer from below to use instead of this one; None to use Keras's."""
    options = {"name": layer.name, "dtype": layer.dtype_policy}
    match layer:
        case layers.BatchNormalization():
            return BatchNormalization(total, layer.momentum, layer.epsilon, **options)
        case layers.Dense() if BACKEND == "torch":
            return TorchDense(layer.units, layer.activation, **options)
        case layers.GlobalAveragePooling2D() if BACKEND != "tensorflow":
            return DividedSum(**options)
    return None


def copy_of(layer: keras.Layer) -> keras.Layer:
    """A new layer like this one: it is a part of one network only, so its output can be asked for.

    On other backends the layer itself: nothing asks there, and to write a configuration Keras would import TensorFlow.
    """
    return layer.from_config(layer.get_config()) if BACKEND == "tensorflow" else layer


def cross_entropy(labels: Any, logits: Any, smoothing: float) -> Any:
    """(n,): the loss of each example; a share `smoothing` of its label is spread evenly over all classes."""
    if not smoothing:
        return ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    classes = logits.shape[1]
    targets = ops.one_hot(labels, classes, dtype=logits.dtype) * (1 - smoothing) + smoothing / classes
    return ops.categorical_crossentropy(targets, logits, from_logits=True)


def make_losses(spec: NetworkSpec, smoothing: float = 0.0) -> Losses:
    """The cross-entropy, or the loss of a user's network."""
    own = spec.loss_in("tf")
    if own is None:
        return functools.partial(cross_entropy, smoothing=smoothing)
    return lambda labels, logits: own(logits, labels)


# --- Layers that compute in 32 bits on some backends, whatever the policy ---


class TorchDense(layers.Dense):
    """For PyTorch, where `ops.matmul` multiplies in 32 bits."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        x = inputs @ ops.convert_to_tensor(self.kernel) + ops.convert_to_tensor(self.bias)
        return self.activation(x)


class DividedSum(layers.Layer):
    """For PyTorch and JAX, where `ops.mean` is of 32 bits."""

    def call(self, x: Any) -> Any:
        return ops.sum(x, [1, 2]) / (x.shape[1] * x.shape[2])


# --- Dropout ---


def drop_nothing(layer: Any) -> None:
    """Switches dropout off: in a network of the user's, each framework draws numbers of its own for it."""
    if isinstance(layer, DROPOUTS):
        layer.rate = 0.0
    of_attention = vars(layer).values() if isinstance(layer, layers.MultiHeadAttention) else ()
    for part in (*parts_of(layer), *(part for part in of_attention if isinstance(part, DROPOUTS))):
        drop_nothing(part)


def parts_of(layer: Any) -> Iterator[keras.Layer]:
    """The layers that a layer or model of the user's is made of, without those inside of attention."""
    if isinstance(layer, layers.MultiHeadAttention):
        return
    listed = layer.layers if isinstance(layer, keras.Model) else []
    values: list[Any] = [*listed, *vars(layer).values()]
    while values:
        match values.pop(0):
            case keras.Layer() as part:
                yield part
            case list() | tuple() as several:
                values = [*several, *values]
            case dict() as several:
                values = [*several.values(), *values]


def with_visits(network: keras.Sequential, seed: int) -> keras.Model:
    """The network, which then takes images and their visits, with dropout that draws the numbers of common/spec."""
    (images,), visits, stream = network.inputs, keras.Input((), dtype="int64"), 0
    x = images
    for layer in network.layers:
        if isinstance(layer, layers.Dropout):
            x = Dropout(layer.rate, seed, stream, name=layer.name)(x, visits)
            stream += 1
        else:
            x = (layer_in_lockstep(layer) or copy_of(layer))(x)
    return keras.Model((images, visits), x)


class Dropout(layers.Layer):
    """Dropout with the random numbers of common/spec.

    Used instead of Keras's layer, whose random numbers depend on the replica, the batch and all earlier draws.

    `stream`: 0 for a network's first dropout layer, 1 for its second.
    """

    def __init__(self, rate: float, seed: int, stream: int, **options: Any) -> None:
        super().__init__(**options)
        self.threshold, self.seed, self.stream = dropout_threshold(rate), seed, FIRST_DROPOUT + stream
        self.scale = RATE_RESOLUTION / (RATE_RESOLUTION - self.threshold)

    def call(self, x: Any, visits: Any, training: bool = False) -> Any:
        """x: (n, ...); visits: int64 (n,), not used in evaluation."""
        if not training:
            return x
        kept = ops.reshape(self.kept(visits, math.prod(x.shape[1:])), ops.shape(x))
        return x * ops.cast(kept, x.dtype) * self.scale

    def kept(self, visits: Any, size: int) -> Any:
        """bool (n, size), see `common.spec.randomness.kept_by_dropout`."""
        numbers = ops.arange(-(-size // 8), dtype="int64")
        words = philox(self.seed, visits[:, None], numbers, self.stream)
        halves = [
            half >= self.threshold for word in words for half in (word & (RATE_RESOLUTION - 1), shifted_right(word, 16))
        ]
        return ops.concatenate(halves, axis=1)[:, :size]

    def compute_output_shape(self, input_shape: tuple[int | None, ...], *others: Any) -> tuple[int | None, ...]:
        return input_shape


# --- Batch normalisation ---


class BatchNormalization(layers.Layer):
    """Batch normalisation with the unbiased running variance and the canonical names.

    Used instead of Keras's layer, whose running variance is the biased one and differs from replica to replica.
    """

    def __init__(self, total: SumOverReplicas | None, momentum: float, epsilon: float, **options: Any) -> None:
        super().__init__(**options)
        self.total, self.momentum, self.epsilon = total or (lambda values: values), momentum, epsilon

    def build(self, shape: tuple[int | None, ...]) -> None:
        channels, options = shape[-1:], {"autocast": False}
        self.scale = self.add_weight(shape=channels, initializer="ones", name="scale", **options)
        self.offset = self.add_weight(shape=channels, initializer="zeros", name="offset", **options)
        # Each replica has its own statistics until `share_statistics` gives all replicas those of the first one.
        options |= {"trainable": False, "aggregation": "none"}
        self.mean = self.add_weight(shape=channels, initializer="zeros", name="mean", **options)
        self.variance = self.add_weight(shape=channels, initializer="ones", name="variance", **options)

    def call(self, inputs: Any, training: bool = False, mask: None = None) -> Any:
        """`mask`: an argument of Keras's layer, which `clone_model` passes on."""
        inputs = ops.cast(inputs, self.variable_dtype)  # in half precision sums would overflow
        mean, variance = self.moments(inputs) if training else (self.mean, self.variance)
        scale, offset = self.scale, self.offset
        outputs = ops.batch_normalization(inputs, mean, variance, -1, offset=offset, scale=scale, epsilon=self.epsilon)
        return ops.cast(outputs, self.compute_dtype)

    def moments(self, inputs: Any) -> tuple[Any, Any]:
        """Mean and variance of each channel; updates the running ones. A shard may be empty, but not the first one."""
        count = ops.maximum(self.total(ops.cast(ops.size(inputs[..., 0]), inputs.dtype)), 1)
        mean = self.total(ops.sum(inputs, [0, 1, 2])) / count
        variance = self.total(ops.sum(ops.square(inputs - mean), [0, 1, 2])) / count
        unbiased = variance * count / ops.maximum(count - 1, 1)
        for running, new in ((self.mean, mean), (self.variance, unbiased)):
            running.assign(self.momentum * running + (1 - self.momentum) * new)
        return mean, variance

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape
