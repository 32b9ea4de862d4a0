"""The networks in Keras, on any backend; their layouts are the canonical ones: NHWC, HWIO kernels, (in, out) dense."""

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import layers, ops

from common.spec.layers import EPSILON, MOMENTUM
from common.spec.networks import NetworkSpec
from common.spec.options import TrainConfig
from common.spec.randomness import FIRST_DROPOUT, RESOLUTION, dropout_threshold
from tf_impl.randomness import high, philox

# The dtype of weights, normalised images and losses; and Keras's policy for the dtype that layers compute in.
DTYPES = {"32": "float32", "64": "float64", "bf16-mixed": "float32", "16-mixed": "float32"}
POLICIES = {"32": "float32", "64": "float64", "bf16-mixed": "mixed_bfloat16", "16-mixed": "mixed_float16"}

Tensor = keras.KerasTensor
Total = Callable[[Any], Any]  # from a replica's numbers to their sum over all replicas


def make_network(spec: NetworkSpec, config: TrainConfig, total: Total | None = None) -> keras.Model:
    """The network of `spec`, from its inputs, see `Batch`, to logits (N, classes), in the run's precision.

    `total`: for `--sync-batchnorm`; None if there is one replica.
    """
    keras.config.set_dtype_policy(POLICIES[config.precision])
    images = keras.Input(spec.image_shape, dtype=DTYPES[config.precision])  # the policy leaves inputs at float32
    make = {
        "cnn": make_cnn,
        "lenet": make_lenet,
        "mnist_dropout": make_mnist_dropout,
        "resnet8": make_resnet8,
        "resnet18": make_resnet18,
        "resnet50": make_resnet50,
    }
    return spec.maker(make)(spec, images, config, total if config.sync_batchnorm else None)


def cross_entropy(labels: Any, logits: Any, smoothing: float) -> Any:
    """(n,): the loss of each example; a share `smoothing` of its label is spread evenly over all classes."""
    if not smoothing:
        return ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    classes = logits.shape[1]
    targets = ops.one_hot(labels, classes, dtype=logits.dtype) * (1 - smoothing) + smoothing / classes
    return ops.categorical_crossentropy(targets, logits, from_logits=True)


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


BACKEND = keras.backend.backend()
Dense = TorchDense if BACKEND == "torch" else layers.Dense
GlobalAverage = layers.GlobalAveragePooling2D if BACKEND == "tensorflow" else DividedSum


# --- The networks ---


def make_cnn(spec: NetworkSpec, images: Tensor, config: TrainConfig, total: Total | None) -> keras.Model:
    return keras.Sequential(
        [
            images,
            layers.Conv2D(32, 3, padding="same", activation="relu", name="conv1"),
            layers.MaxPooling2D(2, name="pool1"),
            layers.Conv2D(64, 3, padding="same", activation="relu", name="conv2"),
            layers.MaxPooling2D(2, name="pool2"),
            layers.Flatten(name="flatten"),  # height, width, channel
            Dense(128, activation="relu", name="dense1"),
            Dense(spec.num_classes, name="dense2"),
        ]
    )


def make_lenet(spec: NetworkSpec, images: Tensor, config: TrainConfig, total: Total | None) -> keras.Model:
    return keras.Sequential(
        [
            images,
            layers.Conv2D(20, 5, padding="valid", activation="relu", name="conv1"),
            layers.MaxPooling2D(2, name="pool1"),
            layers.Conv2D(50, 5, padding="valid", activation="relu", name="conv2"),
            layers.MaxPooling2D(2, name="pool2"),
            layers.Flatten(name="flatten"),  # height, width, channel
            Dense(500, activation="relu", name="dense1"),
            Dense(spec.num_classes, name="dense2"),
        ]
    )


# --- Dropout ---


class Dropout(layers.Layer):
    """Dropout with the random numbers of common/spec.

    Used instead of Keras's layer, whose random numbers depend on the replica, the batch and all earlier draws.

    `stream`: 0 for a network's first dropout layer, 1 for its second.
    """

    def __init__(self, rate: float, seed: int, stream: int, **options: Any) -> None:
        super().__init__(**options)
        self.threshold, self.seed, self.stream = dropout_threshold(rate), seed, FIRST_DROPOUT + stream
        self.scale = RESOLUTION / (RESOLUTION - self.threshold)

    def call(self, x: Any, visits: Any, training: bool = False) -> Any:
        """x: (n, ...); visits: int64 (n,), not used in evaluation."""
        if not training:
            return x
        kept = ops.reshape(self.kept(visits, math.prod(x.shape[1:])), ops.shape(x))
        return x * ops.cast(kept, x.dtype) * self.scale

    def kept(self, visits: Any, size: int) -> Any:
        """bool (n, size), see `common.spec.randomness.kept`."""
        numbers = ops.arange(-(-size // 8), dtype="int64")
        words = philox(self.seed, visits[:, None], numbers, self.stream)
        halves = [half >= self.threshold for word in words for half in (word & (RESOLUTION - 1), high(word, 16))]
        return ops.concatenate(halves, axis=1)[:, :size]

    def compute_output_shape(self, input_shape: tuple[int | None, ...], *others: Any) -> tuple[int | None, ...]:
        return input_shape


def make_mnist_dropout(spec: NetworkSpec, images: Tensor, config: TrainConfig, total: Total | None) -> keras.Model:
    """The network of the usual course script. It takes images and their visits."""
    visits = keras.Input((), dtype="int64")
    x = layers.Conv2D(32, 3, activation="relu", name="conv1")(images)
    x = layers.Conv2D(64, 3, activation="relu", name="conv2")(x)
    x = layers.MaxPooling2D(2, name="pool")(x)
    x = Dropout(0.25, config.seed, stream=0, name="dropout1")(x, visits)
    x = layers.Flatten(name="flatten")(x)  # height, width, channel
    x = Dense(128, activation="relu", name="dense1")(x)
    x = Dropout(0.5, config.seed, stream=1, name="dropout2")(x, visits)
    return keras.Model((images, visits), Dense(spec.num_classes, name="dense2")(x))


# --- Residual networks, with torchvision's names: an underscore stands for each dot, which Keras on PyTorch refuses ---


class BatchNormalization(layers.Layer):
    """Batch normalisation with the unbiased running variance and the canonical names.

    Used instead of Keras's layer, whose running variance is the biased one and differs from replica to replica.
    """

    def __init__(self, total: Total | None, **options: Any) -> None:
        super().__init__(**options)
        self.total = total or (lambda values: values)

    def build(self, shape: tuple[int | None, ...]) -> None:
        channels, options = shape[-1:], {"autocast": False}
        self.scale = self.add_weight(shape=channels, initializer="ones", name="scale", **options)
        self.offset = self.add_weight(shape=channels, initializer="zeros", name="offset", **options)
        # Each replica has its own statistics until `share_statistics` gives all replicas those of the first one.
        options |= {"trainable": False, "aggregation": "none"}
        self.mean = self.add_weight(shape=channels, initializer="zeros", name="mean", **options)
        self.variance = self.add_weight(shape=channels, initializer="ones", name="variance", **options)

    def call(self, inputs: Any, training: bool = False) -> Any:
        inputs = ops.cast(inputs, self.variable_dtype)  # in half precision sums would overflow
        mean, variance = self.moments(inputs) if training else (self.mean, self.variance)
        scale, offset = self.scale, self.offset
        outputs = ops.batch_normalization(inputs, mean, variance, -1, offset=offset, scale=scale, epsilon=EPSILON)
        return ops.cast(outputs, self.compute_dtype)

    def moments(self, inputs: Any) -> tuple[Any, Any]:
        """Mean and variance of each channel; updates the running ones. A shard may be empty, but not the first one."""
        count = ops.maximum(self.total(ops.cast(ops.size(inputs[..., 0]), inputs.dtype)), 1)
        mean = self.total(ops.sum(inputs, [0, 1, 2])) / count
        variance = self.total(ops.sum(ops.square(inputs - mean), [0, 1, 2])) / count
        unbiased = variance * count / ops.maximum(count - 1, 1)
        for running, new in ((self.mean, mean), (self.variance, unbiased)):
            running.assign((1 - MOMENTUM) * running + MOMENTUM * new)
        return mean, variance

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape


def normalised(
    x: Tensor, conv: str, norm: str, total: Total | None, filters: int, size: int, stride: int = 1
) -> Tensor:
    # Pads with zeros on each side, as PyTorch does. With a stride of 2, padding "same" would pad on one side only.
    if size > 1:
        x = layers.ZeroPadding2D(size // 2)(x)
    x = layers.Conv2D(filters, size, stride, use_bias=False, name=conv)(x)
    return BatchNormalization(total, name=norm)(x)


def basic_block(x: Tensor, name: str, total: Total | None, filters: int, stride: int) -> Tensor:
    shortcut = x
    if stride > 1:
        shortcut = normalised(x, f"{name}_downsample_0", f"{name}_downsample_1", total, filters, 1, stride)
    x = layers.ReLU()(normalised(x, f"{name}_conv1", f"{name}_bn1", total, filters, 3, stride))
    x = normalised(x, f"{name}_conv2", f"{name}_bn2", total, filters, 3)
    return layers.Activation("relu", name=name)(layers.Add()([x, shortcut]))


def bottleneck_block(x: Tensor, name: str, total: Total | None, filters: int, stride: int, projected: bool) -> Tensor:
    shortcut = x
    if projected:
        shortcut = normalised(x, f"{name}_downsample_0", f"{name}_downsample_1", total, 4 * filters, 1, stride)
    x = layers.ReLU()(normalised(x, f"{name}_conv1", f"{name}_bn1", total, filters, 1))
    x = layers.ReLU()(normalised(x, f"{name}_conv2", f"{name}_bn2", total, filters, 3, stride))
    x = normalised(x, f"{name}_conv3", f"{name}_bn3", total, 4 * filters, 1)
    return layers.Activation("relu", name=name)(layers.Add()([x, shortcut]))


def classified(spec: NetworkSpec, images: Tensor, x: Tensor) -> keras.Model:
    x = GlobalAverage(name="avgpool")(x)
    return keras.Model(images, Dense(spec.num_classes, name="fc")(x))


def make_resnet8(spec: NetworkSpec, images: Tensor, config: TrainConfig, total: Total | None) -> keras.Model:
    x = layers.ReLU()(normalised(images, "conv1", "bn1", total, 16, 3))
    for number, (filters, stride) in enumerate([(16, 1), (32, 2), (64, 2)], 1):
        x = basic_block(x, f"layer{number}_0", total, filters, stride)
    return classified(spec, images, x)


def make_resnet18(spec: NetworkSpec, images: Tensor, config: TrainConfig, total: Total | None) -> keras.Model:
    x = layers.ReLU()(normalised(images, "conv1", "bn1", total, 64, 3))
    for number, (filters, stride) in enumerate([(64, 1), (128, 2), (256, 2), (512, 2)], 1):
        x = basic_block(x, f"layer{number}_0", total, filters, stride)
        x = basic_block(x, f"layer{number}_1", total, filters, 1)
    return classified(spec, images, x)


def make_resnet50(spec: NetworkSpec, images: Tensor, config: TrainConfig, total: Total | None) -> keras.Model:
    x = layers.ReLU()(normalised(images, "conv1", "bn1", total, 64, 7, 2))
    # Padding with zeros does not change the maxima: after a ReLU no value is below zero.
    x = layers.MaxPooling2D(3, 2, name="maxpool")(layers.ZeroPadding2D(1)(x))
    for number, (blocks, filters, stride) in enumerate([(3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)], 1):
        for index in range(blocks):
            x = bottleneck_block(x, f"layer{number}_{index}", total, filters, stride if index == 0 else 1, index == 0)
    return classified(spec, images, x)
