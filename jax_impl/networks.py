"""The networks in Flax NNX, whose layouts are the canonical ones: NHWC images, HWIO kernels, (in, out) dense."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from common.spec.layers import EPSILON, MOMENTUM
from common.spec.networks import NetworkSpec
from common.spec.options import TrainConfig
from common.spec.randomness import FIRST_DROPOUT, RESOLUTION, dropout_threshold
from jax_impl.precision import COMPUTE_DTYPES, DTYPES
from jax_impl.randomness import philox

Pool = Callable[[jax.Array], jax.Array]


def cross_entropy(logits: jax.Array, labels: jax.Array, smoothing: float) -> jax.Array:
    """(n,): the loss of each example; a share `smoothing` of its label is spread evenly over all classes.

    Used instead of optax.softmax_cross_entropy_with_integer_labels, which is the difference of two large numbers where
    the loss is small.
    """
    if not smoothing:
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)[:, 0]
    targets = jax.nn.one_hot(labels, logits.shape[1], dtype=logits.dtype)
    return optax.softmax_cross_entropy(logits, optax.smooth_labels(targets, smoothing))


# --- A network: layers in a row, some of which are rows themselves ---


@dataclass
class Pass:
    """What layers need to know of a pass through the network.

    Attributes:
      visits: int64 (n,), for dropout in training.
      real: bool (n,), which examples are not padding; for batch normalisation in training.
      outputs: gets the output of each layer, by canonical name; None: they are not kept.
    """

    training: bool
    visits: jax.Array | None
    real: jax.Array | None
    outputs: dict[str, jax.Array] | None


class Layers(nnx.Module):
    """Layers in a row. Their names make up the canonical names of their parameters."""

    def __init__(self, prefix: str, layers: dict[str, Any]) -> None:
        """`prefix`: of the canonical names, such as `layer1.`."""
        self.prefix, self.names, self.layers = prefix, tuple(layers), nnx.Dict(layers)

    def __call__(self, x: jax.Array, run: Pass) -> jax.Array:
        for name in self.names:
            layer = self.layers[name]
            x = layer(x, run) if isinstance(layer, Layers | BatchNorm | Dropout) else layer(x)
            if run.outputs is not None:
                run.outputs[self.prefix + name.removesuffix("_relu")] = x  # a layer's ReLU is a part of the layer
        return x


class Network(Layers):
    """Takes the inputs of a `Batch` to logits (n, classes)."""

    def __init__(self, layers: dict[str, Any]) -> None:
        super().__init__("", layers)

    def __call__(
        self,
        inputs: Any,
        real: jax.Array | None = None,
        training: bool = False,
        outputs: dict[str, jax.Array] | None = None,
    ) -> jax.Array:
        """See `Pass`."""
        images, visits = inputs if isinstance(inputs, tuple) else (inputs, None)
        return super().__call__(images, Pass(training, visits, real, outputs))


class Maker:
    """Makes layers in the run's precision. Their first weights don't matter: `load_weights` replaces them."""

    def __init__(self, config: TrainConfig, max_pool: Pool) -> None:
        self.config, self.dtype, self.max_pool = config, DTYPES[config.precision], max_pool
        self.compute_dtype = COMPUTE_DTYPES[config.precision]
        zeros = nnx.initializers.zeros_init()
        self.options: dict[str, Any] = {
            "dtype": self.compute_dtype,
            "param_dtype": self.dtype,
            "kernel_init": zeros,
            "rngs": nnx.Rngs(0),
        }

    def conv(self, inputs: int, outputs: int, size: int, padding: str | int, **options: Any) -> nnx.Conv:
        return nnx.Conv(inputs, outputs, (size, size), padding=padding, **self.options, **options)

    def dense(self, inputs: int, outputs: int) -> nnx.Linear:
        return nnx.Linear(inputs, outputs, **self.options)

    def norm(self, channels: int) -> "BatchNorm":
        return BatchNorm(channels, self.config, self.dtype, self.compute_dtype)


def flatten(x: jax.Array) -> jax.Array:
    return x.reshape(len(x), -1)  # height, width, channel


def mean_of_channels(x: jax.Array) -> jax.Array:
    return x.mean((1, 2))


def make_network(spec: NetworkSpec, config: TrainConfig, max_pool: Pool | None = None) -> Network:
    """The network of `spec`, from its inputs, see `Batch`, to logits (N, classes), in the run's precision.

    `max_pool`: the maximum over 2 x 2; by default Flax's.
    """
    makers: dict[str, Callable[[NetworkSpec, Maker], Network]] = {
        "cnn": make_cnn,
        "lenet": make_lenet,
        "mnist_dropout": make_mnist_dropout,
        "resnet8": make_resnet8,
        "resnet18": make_resnet18,
        "resnet50": make_resnet50,
    }
    max_pool = max_pool or partial(nnx.max_pool, window_shape=(2, 2), strides=(2, 2))
    return spec.maker(makers)(spec, Maker(config, max_pool))


def make_cnn(spec: NetworkSpec, make: Maker) -> Network:
    height, width, channels = spec.image_shape
    return Network(
        {
            "conv1": make.conv(channels, 32, 3, "SAME"),
            "conv1_relu": nnx.relu,
            "pool1": make.max_pool,
            "conv2": make.conv(32, 64, 3, "SAME"),
            "conv2_relu": nnx.relu,
            "pool2": make.max_pool,
            "flatten": flatten,
            "dense1": make.dense(64 * (height // 4) * (width // 4), 128),
            "dense1_relu": nnx.relu,
            "dense2": make.dense(128, spec.num_classes),
        }
    )


def make_lenet(spec: NetworkSpec, make: Maker) -> Network:
    height, width, _ = (((size - 4) // 2 - 4) // 2 for size in spec.image_shape)
    return Network(
        {
            "conv1": make.conv(spec.image_shape[2], 20, 5, "VALID"),
            "conv1_relu": nnx.relu,
            "pool1": make.max_pool,
            "conv2": make.conv(20, 50, 5, "VALID"),
            "conv2_relu": nnx.relu,
            "pool2": make.max_pool,
            "flatten": flatten,
            "dense1": make.dense(50 * height * width, 500),
            "dense1_relu": nnx.relu,
            "dense2": make.dense(500, spec.num_classes),
        }
    )


# --- Dropout ---


class Dropout(nnx.Module):
    """Dropout with the random numbers of common/spec.

    Used instead of nnx.Dropout, whose random numbers depend on the batch and all earlier draws.

    `stream`: 0 for a network's first dropout layer, 1 for its second.
    """

    def __init__(self, rate: float, seed: int, stream: int) -> None:
        self.threshold, self.seed, self.stream = dropout_threshold(rate), seed, FIRST_DROPOUT + stream
        self.scale = RESOLUTION / (RESOLUTION - self.threshold)

    def __call__(self, x: jax.Array, run: Pass) -> jax.Array:
        if not run.training:
            return x
        return x * self.kept(run.visits, math.prod(x.shape[1:])).reshape(x.shape) * self.scale

    def kept(self, visits: jax.Array, size: int) -> jax.Array:
        """bool (n, size), see `common.spec.randomness.kept`."""
        words = philox(self.seed, visits[:, None], jnp.arange(-(-size // 8)), self.stream)
        halves = [half >= self.threshold for word in words for half in (word & (RESOLUTION - 1), word >> 16)]
        return jnp.concatenate(halves, axis=1)[:, :size]


def make_mnist_dropout(spec: NetworkSpec, make: Maker) -> Network:
    """The network of the usual course script. It takes images and their visits."""
    height, width, channels = spec.image_shape
    return Network(
        {
            "conv1": make.conv(channels, 32, 3, "VALID"),
            "conv1_relu": nnx.relu,
            "conv2": make.conv(32, 64, 3, "VALID"),
            "conv2_relu": nnx.relu,
            "pool": make.max_pool,
            "dropout1": Dropout(0.25, make.config.seed, stream=0),
            "flatten": flatten,
            "dense1": make.dense(64 * ((height - 4) // 2) * ((width - 4) // 2), 128),
            "dense1_relu": nnx.relu,
            "dropout2": Dropout(0.5, make.config.seed, stream=1),
            "dense2": make.dense(128, spec.num_classes),
        }
    )


# --- Residual networks, with torchvision's names ---


class BatchNorm(nnx.Module):
    """Batch normalisation of each replica's shard, with the unbiased running variance and the canonical names.

    Used instead of nnx.BatchNorm, whose running variance is the biased one, and which normalises over the whole batch
    where its shards are arrays of one mesh.
    """

    def __init__(self, channels: int, config: TrainConfig, dtype: Any, compute_dtype: Any) -> None:
        self.scale, self.offset = nnx.Param(jnp.ones(channels, dtype)), nnx.Param(jnp.zeros(channels, dtype))
        self.mean, self.variance = nnx.BatchStat(jnp.zeros(channels, dtype)), nnx.BatchStat(jnp.ones(channels, dtype))
        self.dtype, self.compute_dtype = dtype, compute_dtype
        self.num_parts = 1 if config.sync_batchnorm else config.num_shards  # of a batch, each with its own statistics

    def __call__(self, x: jax.Array, run: Pass) -> jax.Array:
        """x: (n, H, W, C)."""
        inputs = x.astype(self.dtype)  # in half precision sums would overflow
        if not run.training:
            return self.normalised(inputs, self.mean[...], self.variance[...])
        parts = inputs.reshape(self.num_parts, -1, *x.shape[1:])
        assert run.real is not None
        counted = run.real.astype(self.dtype).reshape(self.num_parts, -1, 1, 1, 1)
        # A shard may be empty, but not the first one.
        counts = jnp.maximum(counted.sum(1, keepdims=True) * x.shape[1] * x.shape[2], 1)
        mean = (parts * counted).sum((1, 2, 3), keepdims=True) / counts
        variance = (jnp.square(parts - mean) * counted).sum((1, 2, 3), keepdims=True) / counts
        unbiased = variance * counts / jnp.maximum(counts - 1, 1)
        for running, new in ((self.mean, mean), (self.variance, unbiased)):
            running[...] = (1 - MOMENTUM) * running[...] + MOMENTUM * new[0, 0, 0, 0]  # the first replica's
        return self.normalised(parts, mean, variance).reshape(x.shape)

    def normalised(self, x: jax.Array, mean: jax.Array, variance: jax.Array) -> jax.Array:
        factor = self.scale[...] / jnp.sqrt(variance + EPSILON)
        return ((x - mean) * factor + self.offset[...]).astype(self.compute_dtype)


class Residual(Layers):
    """The sum of the layers' output and of the shortcut, then ReLU. Without a projection the shortcut is the input."""

    def __init__(self, name: str, layers: dict[str, Any], projection: dict[str, Any] | None) -> None:
        super().__init__(f"{name}.", layers)
        self.downsample = Layers(f"{name}.downsample.", projection) if projection else None

    def __call__(self, x: jax.Array, run: Pass) -> jax.Array:
        shortcut = self.downsample(x, run) if self.downsample else x
        return nnx.relu(super().__call__(x, run) + shortcut)


def basic_block(make: Maker, name: str, inputs: int, filters: int, stride: int) -> Residual:
    layers = {
        "conv1": make.conv(inputs, filters, 3, 1, strides=stride, use_bias=False),
        "bn1": make.norm(filters),
        "relu1": nnx.relu,
        "conv2": make.conv(filters, filters, 3, 1, use_bias=False),
        "bn2": make.norm(filters),
    }
    return Residual(name, layers, projection(make, inputs, filters, stride) if stride > 1 else None)


def bottleneck_block(make: Maker, name: str, inputs: int, filters: int, stride: int) -> Residual:
    layers = {
        "conv1": make.conv(inputs, filters, 1, 0, use_bias=False),
        "bn1": make.norm(filters),
        "relu1": nnx.relu,
        "conv2": make.conv(filters, filters, 3, 1, strides=stride, use_bias=False),
        "bn2": make.norm(filters),
        "relu2": nnx.relu,
        "conv3": make.conv(filters, 4 * filters, 1, 0, use_bias=False),
        "bn3": make.norm(4 * filters),
    }
    projected = inputs != 4 * filters
    return Residual(name, layers, projection(make, inputs, 4 * filters, stride) if projected else None)


def projection(make: Maker, inputs: int, filters: int, stride: int) -> dict[str, Any]:
    return {"0": make.conv(inputs, filters, 1, 0, strides=stride, use_bias=False), "1": make.norm(filters)}


def residual_network(
    spec: NetworkSpec,
    make: Maker,
    stem: dict[str, Any],
    block: Callable[..., Residual],
    stages: list[tuple[int, int, int]],
    widening: int = 1,
) -> Network:
    """Args:
    stages: number of blocks, filters and stride of each stage.
    widening: a block has `widening` times as many outputs as filters.
    """
    layers, inputs = dict(stem), stages[0][1]
    for number, (blocks, filters, stride) in enumerate(stages, 1):
        stage: dict[str, Any] = {}
        for index in range(blocks):
            name = f"layer{number}.{index}"
            stage[str(index)] = block(make, name, inputs, filters, stride if index == 0 else 1)
            inputs = widening * filters
        layers[f"layer{number}"] = Layers(f"layer{number}.", stage)
    return Network({**layers, "avgpool": mean_of_channels, "fc": make.dense(inputs, spec.num_classes)})


def make_stem(spec: NetworkSpec, make: Maker, filters: int, size: int = 3, stride: int = 1) -> dict[str, Any]:
    conv = make.conv(spec.image_shape[2], filters, size, size // 2, strides=stride, use_bias=False)
    return {"conv1": conv, "bn1": make.norm(filters), "relu1": nnx.relu}


def make_resnet8(spec: NetworkSpec, make: Maker) -> Network:
    stages = [(1, 16, 1), (1, 32, 2), (1, 64, 2)]
    return residual_network(spec, make, make_stem(spec, make, 16), basic_block, stages)


def make_resnet18(spec: NetworkSpec, make: Maker) -> Network:
    stages = [(2, 64, 1), (2, 128, 2), (2, 256, 2), (2, 512, 2)]
    return residual_network(spec, make, make_stem(spec, make, 64), basic_block, stages)


def make_resnet50(spec: NetworkSpec, make: Maker) -> Network:
    stages = [(3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)]
    pool = partial(nnx.max_pool, window_shape=(3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
    stem = {**make_stem(spec, make, 64, 7, 2), "maxpool": pool}
    return residual_network(spec, make, stem, bottleneck_block, stages, widening=4)
