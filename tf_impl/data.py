"""Batches in TensorFlow: a tf.data pipeline over the shared arrays, distributed by the strategy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.data.datasets import Dataset
from common.data.formats import Images, Labels
from common.experiment import Experiment
from common.spec.augmentation import Augmentation
from common.spec.batches import EVAL_BATCH_SIZE, epoch_order, shards
from common.spec.batches import Batch as Batch
from common.spec.options import Precision
from common.spec.randomness import STREAM_AUGMENTATION, positions, visits
from tf_impl.networks import DTYPES
from tf_impl.randomness import philox, shifted_right

# An element of a pipeline: inputs, labels and count of a Batch. It is a plain tuple, since tf.function needs more time
# for any other type in every step. A step makes a Batch of it when it is traced.
Shard = tuple[Any, tf.Tensor, tf.Tensor]


def normalise(images: tf.Tensor, dataset: Dataset, precision: Precision) -> tf.Tensor:
    """Stored images (n, H, W, C) to the network's input, (n, H, W, C) in its precision."""
    shift, scale = (tf.cast(values, DTYPES[precision]) for values in (dataset.shift, dataset.scale))
    return (tf.cast(images, DTYPES[precision]) - shift) * scale


def augment(images: tf.Tensor, visits: tf.Tensor, augmentation: Augmentation) -> tf.Tensor:
    """Crops and mirrors images (n, H, W, C); those of a visit, int64 (n,), have random numbers of their own.

    Used instead of Keras's layers, whose random numbers depend on all earlier ones.
    """
    (height, width), pad = images.shape[1:3], augmentation.padding
    words = philox(augmentation.seed, visits, 0, STREAM_AUGMENTATION)
    vertical, horizontal, mirror = (word[:, None] for word in words[:3])
    # A word times n, shifted right by 32 bits, is an integer from 0 to n - 1.
    rows = tf.range(height, dtype=tf.int64) + shifted_right(vertical * (2 * pad + 1))
    columns = tf.range(width, dtype=tf.int64)
    if augmentation.flips:
        columns = tf.where(shifted_right(mirror, 31) == 1, columns[::-1], columns)
    columns = columns + shifted_right(horizontal * (2 * pad + 1))
    padded = tf.pad(images, [[0, 0], [pad, pad], [pad, pad], [0, 0]])
    return tf.gather(tf.gather(padded, rows, axis=1, batch_dims=1), columns, axis=2, batch_dims=1)


class Shards:
    """The shards of the first batch, one for each replica, then those of the second, ...

    They are those of the training set, shuffled, in an epoch; or those of the test set, in its own order.

    Args:
      trains: whether they are those of the training set.

    Attributes:
      visits: int64 (num_examples,): the examples in the order of the batches, see common/spec/randomness.py.
      bounds: int64 (num_batches, num_replicas, 3): start and stop of each shard in that order, and the size of its
        global batch; see `common.spec.batches.shards`.
    """

    def __init__(self, experiment: Experiment, num_replicas: int, trains: bool) -> None:
        dataset, plan = experiment.dataset, experiment.plan
        self.experiment, self.num_replicas, self.trains = experiment, num_replicas, trains
        self.augmentation = experiment.augmentation if trains else None
        if trains:
            self.images, self.labels = dataset.train_images, dataset.train_labels
            self.batch_size = plan.batch_size
        else:
            self.images, self.labels = dataset.test_images, dataset.test_labels
            self.batch_size = EVAL_BATCH_SIZE
        self.set_epoch(plan.epochs_done)

    def set_epoch(self, epoch: int) -> None:
        """Sets the order of examples in an epoch, counted from 0 as in PyTorch's DistributedSampler.

        The pipeline calls `__getitem__` while it runs, so it reads the order that is set here.
        """
        if self.trains:
            plan = self.experiment.plan
            order = epoch_order(self.experiment.config.seed, epoch + 1, plan.train_size)
            self.visits, self.bounds = visits(epoch + 1, order), plan.shards(epoch + 1, self.num_replicas)
        else:
            self.visits = np.arange(len(self.images))
            self.bounds = shards(len(self.images), self.batch_size, self.num_replicas)

    def __len__(self) -> int:
        """Number of shards of all replicas."""
        return self.bounds.shape[0] * self.bounds.shape[1]

    def whole_batches(self) -> NDArray[np.int64]:
        """int64 (n,): the visits of all batches, in their order; fewer than `visits` if batches are left out."""
        return np.concatenate([self.visits[batch[0, 0] : batch[-1, 1]] for batch in self.bounds])

    def indices(self, replicas: range) -> NDArray[np.int64]:
        """Indices of the shards of these replicas, batch by batch; fewer if a training resumes within the epoch."""
        return np.arange(len(self)).reshape(-1, self.num_replicas)[:, replicas].ravel()

    def __getitem__(self, index: int) -> tuple[Images, Labels, np.int64, NDArray[np.int64]]:
        """The stored images and labels, the size of the global batch, and the visits."""
        start, stop, count = self.bounds.reshape(-1, 3)[index]
        visits = self.visits[start:stop]
        indices = positions(visits)
        return self.images[indices], self.labels[indices], count, visits

    def prepare(self, images: tf.Tensor, visits: tf.Tensor) -> Any:
        """Converts stored images to a network's inputs, see `Batch`; augments them if there is an augmentation."""
        if self.augmentation:
            images = augment(images, visits, self.augmentation)
        images = normalise(images, self.experiment.dataset, self.experiment.config.precision)
        return (images, visits) if self.experiment.network.drops else images


def make_shards(experiment: Experiment, num_replicas: int) -> tuple[Shards, Shards]:
    """The shards of the training and of the test set. Call `set_epoch` of the first before every training epoch."""
    return Shards(experiment, num_replicas, trains=True), Shards(experiment, num_replicas, trains=False)


def batch_signature(experiment: Experiment) -> tuple[Any, tf.TensorSpec, tf.TensorSpec]:
    """The signature of a `Batch`: inputs, labels and count, with any number of examples."""
    images = tf.TensorSpec([None, *experiment.network.image_shape], DTYPES[experiment.config.precision])
    visits, labels = tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.int64)
    return (images, visits) if experiment.network.drops else images, labels, tf.TensorSpec([], tf.int64)


def gather(shards: Shards) -> Callable[[tf.Tensor], tuple[tf.Tensor, ...]]:
    """A function for tf.data from an index to what `shards` has there; it calls Python once for a shard."""
    shapes, types = ([None, *shards.images.shape[1:]], [None], [], [None]), (shards.images.dtype, *[tf.int64] * 3)

    def gathered(index: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return tuple(map(tf.ensure_shape, tf.numpy_function(shards.__getitem__, [index], types), shapes))

    return gathered


def loader(shards: Shards) -> Callable[[tf.Tensor], Shard]:
    """A function for tf.data from a shard's index to the shard."""
    gathered = gather(shards)

    def load(index: tf.Tensor) -> Shard:
        images, labels, count, visits = gathered(index)
        return shards.prepare(images, visits), labels, count

    return load


def of_epoch(
    read: Callable[[], NDArray[np.int64]],
    cut: Callable[[tf.Tensor], tf.data.Dataset] = tf.data.Dataset.from_tensor_slices,
) -> tf.data.Dataset:
    """A dataset that each iteration over it makes anew: what `cut` makes of the numbers that `read` then returns."""

    def made(_: tf.Tensor) -> tf.data.Dataset:
        return cut(tf.ensure_shape(tf.numpy_function(read, [], tf.int64), [None]))

    return tf.data.Dataset.range(1).flat_map(made)


def make_dataset(strategy: tf.distribute.Strategy, shards: Shards) -> tf.distribute.DistributedDataset:
    """A dataset that gives each replica its shard of each batch, see `Shard`, prepared ahead of the steps."""
    return distribute(strategy, shards, lambda indices: indices.map(loader(shards)).prefetch(tf.data.AUTOTUNE))


def distribute(
    strategy: tf.distribute.Strategy, shards: Shards, load: Callable[[tf.data.Dataset], tf.data.Dataset]
) -> tf.distribute.DistributedDataset:
    """A dataset that gives each replica what `load` makes of the indices of its shards.

    If the strategy has several processes, each of them loads the shards of its own replicas.
    """

    def dataset_of_shards(context: tf.distribute.InputContext) -> tf.data.Dataset:
        own = shards.num_replicas // context.num_input_pipelines
        replicas = range(context.input_pipeline_id * own, (context.input_pipeline_id + 1) * own)
        return load(of_epoch(lambda: shards.indices(replicas)))

    # Instead of experimental_distribute_dataset, which would split batches by itself: they are sharded already.
    return strategy.distribute_datasets_from_function(dataset_of_shards)
