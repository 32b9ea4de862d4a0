"""The networks in Flax NNX, whose layouts are the canonical ones: NHWC images, HWIO kernels, (in, out) dense.

A network is made by `jax.py` of its folder in networks/. For the lockstep some of its layers are replaced here.
"""

import itertools
import math
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from common.spec.networks import NetworkSpec
from common.spec.options import TrainConfig
from common.spec.own_network import Layout
from common.spec.randomness import FIRST_DROPOUT, RATE_RESOLUTION, dropout_threshold
from jax_impl.precision import COMPUTE_DTYPES, DTYPES
from jax_impl.randomness import philox

Pool = Callable[[jax.Array], jax.Array]
Losses = Callable[[jax.Array, jax.Array], jax.Array]  # from logits (n, classes) and labels (n,) to losses (n,)


def cross_entropy(logits: jax.Array, labels: jax.Array, smoothing: float) -> jax.Array:
    """(n,): the loss of each example; a share `smoothing` of its label is spread evenly over all classes.

    Used instead of optax.softmax_cross_entropy_with_integer_labels, which is the difference of two large numbers where
    the loss is small.
    """
    if not smoothing:
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)[:, 0]
    targets = jax.nn.one_hot(labels, logits.shape[1], dtype=logits.dtype)
    return optax.softmax_cross_entropy(logits, optax.smooth_labels(targets, smoothing))


def make_losses(spec: NetworkSpec, smoothing: float = 0.0) -> Losses:
    """The cross-entropy, or the loss of a user's network."""
    own: Losses | None = spec.loss_in("jax")
    return partial(cross_entropy, smoothing=smoothing) if own is None else own


# --- The network ---


@dataclass
class NetworkPass:
    """What layers need to know of a pass through the network, beside their inputs.

    Attributes:
      visits: int64 (n,), for dropout in training.
      real: bool (n,), which examples are not padding; for batch normalisation in training.
      outputs: gets the output of each layer, by canonical name; None: they are not kept.
    """

    training: bool
    visits: jax.Array | None
    real: jax.Array | None
    outputs: dict[str, jax.Array] | None


POOL_2X2 = {"window_shape": (2, 2), "strides": (2, 2)}
CURRENT_PASS: ContextVar[NetworkPass] = ContextVar(
    "PASS"
)  # of the network that is called; its layers get their inputs alone


class Network(nnx.Module):
    """A network of the folder networks/, or of the user's. It takes the inputs of a `Batch` to logits (n, classes).

    `layout`: of a network of the user's, see `common.spec.own_network`.
    """

    def __init__(self, layers: nnx.Module, layout: Layout | None) -> None:
        self.layers, self.layout = layers, layout

    def __call__(
        self,
        inputs: Any,
        real: jax.Array | None = None,
        training: bool = False,
        outputs: dict[str, jax.Array] | None = None,
    ) -> jax.Array:
        """See `NetworkPass`."""
        images, visits = inputs if isinstance(inputs, tuple) else (inputs, None)
        CURRENT_PASS.set(NetworkPass(training, visits, real, outputs))
        return self.layers(images)


def make_network(spec: NetworkSpec, config: TrainConfig, max_pool: Pool | None = None) -> Network:
    """The network of `spec`, from its inputs, see `Batch`, to logits (N, classes), in the run's precision.

    Its first weights are zeros, since `load_weights` replaces them.

    Args:
      max_pool: the maximum over 2 x 2; by default Flax's.
    """
    dtype, compute_dtype = DTYPES[config.precision], COMPUTE_DTYPES[config.precision]
    streams = itertools.count()

    def replaced(path: Any, node: Any) -> Any:
        """For the lockstep: the layers from below instead of Flax's; dropout in the order of its names."""
        match node:
            case nnx.Dropout() if spec.is_own:
                return OwnDropout(node, drops=config.verify_steps is None)
            case nnx.Dropout():
                return Dropout(node.rate, config.seed, next(streams))
            case nnx.BatchNorm():
                return BatchNorm(node, config)
        return node

    def zeros(array: jax.ShapeDtypeStruct) -> jax.Array:
        return jnp.zeros(array.shape, dtype if jnp.issubdtype(array.dtype, jnp.floating) else array.dtype)

    def in_precision(array: jax.Array) -> jax.Array:
        return array.astype(dtype) if jnp.issubdtype(array.dtype, jnp.floating) else array

    # Nothing is computed for weights that are replaced. A network of the user's may have constants among them.
    if spec.is_own:
        graph, state = nnx.split(spec.make_in("jax"))
        layers = nnx.merge(graph, jax.tree.map(in_precision, state))
    else:
        graph, state = nnx.split(nnx.eval_shape(lambda: spec.make_in("jax")))
        layers = nnx.merge(graph, jax.tree.map(zeros, state))
    layers = nnx.recursive_map(replaced, layers)
    for _, module in nnx.iter_modules(layers):
        if isinstance(module, nnx.Conv | nnx.Linear):
            module.dtype, module.param_dtype = compute_dtype, dtype
        for name, value in vars(module).items():
            if max_pool and isinstance(value, partial) and value.keywords == POOL_2X2:
                setattr(module, name, max_pool)
    return Network(layers, spec.layout_in("jax"))


# --- Dropout ---


class Dropout(nnx.Module):
    """Dropout with the random numbers of common/spec.

    Used instead of nnx.Dropout, whose random numbers depend on the batch and all earlier draws.

    `stream`: 0 for a network's first dropout layer, 1 for its second.
    """

    def __init__(self, rate: float, seed: int, stream: int) -> None:
        self.threshold, self.seed, self.stream = dropout_threshold(rate), seed, FIRST_DROPOUT + stream
        self.scale = RATE_RESOLUTION / (RATE_RESOLUTION - self.threshold)

    def __call__(self, x: jax.Array) -> jax.Array:
        if not CURRENT_PASS.get().training:
            return x
        return x * self.kept(CURRENT_PASS.get().visits, math.prod(x.shape[1:])).reshape(x.shape) * self.scale

    def kept(self, visits: jax.Array, size: int) -> jax.Array:
        """bool (n, size), see `common.spec.randomness.kept_by_dropout`."""
        words = philox(self.seed, visits[:, None], jnp.arange(-(-size // 8)), self.stream)
        halves = [half >= self.threshold for word in words for half in (word & (RATE_RESOLUTION - 1), word >> 16)]
        return jnp.concatenate(halves, axis=1)[:, :size]


class OwnDropout(nnx.Module):
    """Flax's dropout in a network of the user's, which need not know whether it trains; a proof drops nothing."""

    def __init__(self, dropout: nnx.Dropout, drops: bool) -> None:
        self.dropout, self.drops = dropout, drops

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.dropout(x, deterministic=not (self.drops and CURRENT_PASS.get().training))


# --- Batch normalisation ---


class BatchNorm(nnx.Module):
    """Batch normalisation of each replica's shard, with the unbiased running variance and the canonical names.

    Used instead of nnx.BatchNorm, whose running variance is the biased one, and which normalises over the whole batch
    where its shards are arrays of one mesh.
    """

    def __init__(self, layer: nnx.BatchNorm, config: TrainConfig) -> None:
        channels, dtype = layer.num_features, DTYPES[config.precision]
        self.momentum, self.epsilon = layer.momentum, layer.epsilon
        self.scale, self.offset = nnx.Param(jnp.ones(channels, dtype)), nnx.Param(jnp.zeros(channels, dtype))
        self.mean, self.variance = nnx.BatchStat(jnp.zeros(channels, dtype)), nnx.BatchStat(jnp.ones(channels, dtype))
        self.dtype, self.compute_dtype = dtype, COMPUTE_DTYPES[config.precision]
        self.num_parts = 1 if config.sync_batchnorm else config.num_shards  # of a batch, each with its own statistics

    def __call__(self, x: jax.Array) -> jax.Array:
        """x: (n, H, W, C)."""
        run = CURRENT_PASS.get()
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
            running[...] = self.momentum * running[...] + (1 - self.momentum) * new[0, 0, 0, 0]  # the first replica's
        return self.normalised(parts, mean, variance).reshape(x.shape)

    def normalised(self, x: jax.Array, mean: jax.Array, variance: jax.Array) -> jax.Array:
        factor = self.scale[...] / jnp.sqrt(variance + self.epsilon)
        return ((x - mean) * factor + self.offset[...]).astype(self.compute_dtype)
