"""Batches in JAX: gathered from the shared arrays on the host, put on the devices, prepared there."""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from numpy.typing import NDArray

from common.data.formats import Images, Labels
from common.experiment import Experiment
from common.spec.augmentation import Augmentation
from common.spec.batches import EVAL_BATCH_SIZE, epoch_order, shards
from common.spec.randomness import STREAM_AUGMENTATION, positions, visits
from jax_impl.precision import DTYPES
from jax_impl.randomness import philox


class Batch(NamedTuple):
    """A batch of all replicas; its first axis is divided among the devices.

    All batches of a set have the same size, and so have all shards of a batch: a step is compiled for one size, and a
    device's part of an array must be as large as the others'. What is missing is padding: examples of weight 0, which
    no sum counts.

    Attributes:
      inputs: images (n, H, W, C). For a network with dropout, a pair of images and their visits, int64 (n,), see
        `common.spec.randomness.visits`.
      labels: int64 (n,).
      weights: float (n,), each example's weight in the loss: 1 / the number of examples of the step; in evaluation 1.
    """

    inputs: Any
    labels: Any
    weights: Any


def augment(images: jax.Array, visits: jax.Array, augmentation: Augmentation) -> jax.Array:
    """Crops and mirrors images (n, H, W, C); those of a visit, int64 (n,), have random numbers of their own."""
    (height, width), pad = images.shape[1:3], augmentation.padding
    words = philox(augmentation.seed, visits, 0, STREAM_AUGMENTATION)
    vertical, horizontal, mirror = (word[:, None] for word in words[:3])
    # A word times n, shifted right by 32 bits, is an integer from 0 to n - 1.
    rows = jnp.arange(height) + (vertical * (2 * pad + 1) >> 32)
    columns = jnp.arange(width)
    if augmentation.flips:
        columns = jnp.where(mirror >> 31 == 1, columns[::-1], columns)
    columns = columns + (horizontal * (2 * pad + 1) >> 32)
    padded = jnp.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    return jax.vmap(lambda image, row, column: image[row[:, None], column])(padded, rows, columns)


class Prepare:
    """Converts stored images to a network's inputs, see `Batch`; augments them if there is an augmentation."""

    def __init__(self, experiment: Experiment, augmentation: Augmentation | None) -> None:
        dataset, dtype = experiment.dataset, DTYPES[experiment.config.precision]
        self.augmentation, self.drops, self.dtype = augmentation, experiment.network.drops, dtype
        self.shift, self.scale = (jnp.asarray(array, dtype) for array in (dataset.shift, dataset.scale))

    def __call__(self, images: jax.Array, visits: jax.Array) -> Any:
        """`images`: as stored, (n, H, W, C)."""
        if self.augmentation:
            images = augment(images, visits, self.augmentation)
        images = (images.astype(self.dtype) - self.shift) * self.scale
        return (images, visits) if self.drops else images


class Batches:
    """The batches of the training set, shuffled; or those of the test set, in its own order.

    Args:
      sharding: how the first axis of a batch is divided among the devices.
      trains: whether they are those of the training set.
    """

    def __init__(self, experiment: Experiment, sharding: NamedSharding, trains: bool) -> None:
        dataset, config = experiment.dataset, experiment.config
        self.experiment, self.sharding, self.trains = experiment, sharding, trains
        if trains:
            self.images, self.labels, self.size = dataset.train_images, dataset.train_labels, config.batch_size
        else:
            self.images, self.labels, self.size = dataset.test_images, dataset.test_labels, EVAL_BATCH_SIZE
        self.augmentation = experiment.augmentation if trains else None
        self.dtype, self.num_shards = np.dtype(DTYPES[config.precision]), config.num_shards
        self.shard_size = -(-min(self.size, len(self.labels)) // self.num_shards)
        self.num_batches = -(-len(self.labels) // self.size)  # of the whole set
        self.prepare = Prepare(experiment, self.augmentation)
        self.prepare_compiled = jax.jit(self.prepare)

    def rows(self, epoch: int = 0) -> tuple[NDArray[np.int64], NDArray[np.floating]]:
        """The visits, int64 (batches, n), and weights, (batches, n), of an epoch of training, counted from 0."""
        seed, plan, num_examples = self.experiment.config.seed, self.experiment.plan, len(self.labels)
        if self.trains:
            order = visits(epoch + 1, epoch_order(seed, epoch + 1, num_examples))
            bounds = plan.shards(epoch + 1, self.num_shards)
        else:
            order, bounds = np.arange(num_examples), shards(num_examples, self.size, self.num_shards)
        places = bounds[:, :, :1] + np.arange(self.shard_size)
        real = places < bounds[:, :, 1:2]  # not padding
        of_batches = order[np.where(real, places, 0)].reshape(len(bounds), -1)
        real = real.reshape(len(bounds), -1)
        weights = real / bounds[:, 0, 2:] if self.trains else real
        return of_batches, weights.astype(self.dtype)

    def epoch(self, epoch: int = 0) -> Iterator[Batch]:
        """The batches of an epoch of training, counted from 0, or of the test set."""
        return itertools.starmap(self.batch, zip(*self.rows(epoch), strict=True))

    def own(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Of rows (..., n) of a batch, those whose examples are on this process's devices."""
        size = self.shard_size * (self.num_shards // jax.process_count())
        return rows[..., jax.process_index() * size : (jax.process_index() + 1) * size]

    def stored(self, visits: NDArray[np.int64]) -> tuple[Images, Labels]:
        """The images, (..., H, W, C), and labels, int64 (...), of visits (...)."""
        indices = positions(visits)
        return self.images[indices], self.labels[indices]

    def divided(self, own: NDArray[Any], axis: int = 0) -> jax.Array:
        """The array of which all processes have parts, divided along an axis, that of a batch's examples."""
        sharding = NamedSharding(self.sharding.mesh, PartitionSpec(*[None] * axis, *self.sharding.spec))
        shape = (*own.shape[:axis], self.shard_size * self.num_shards, *own.shape[axis + 1 :])
        return jax.make_array_from_process_local_data(sharding, own, shape)

    def batch(self, visits: NDArray[np.int64], weights: NDArray[np.floating]) -> Batch:
        """The batch of these visits, int64 (n,), with these weights, (n,)."""
        visits, weights = self.own(visits), self.own(weights)
        images, labels = self.stored(visits)
        inputs = self.prepare_compiled(self.divided(images), self.divided(visits))
        return Batch(inputs, self.divided(labels), self.divided(weights))
