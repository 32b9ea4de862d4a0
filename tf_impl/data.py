"""Batches in TensorFlow: a tf.data pipeline over the shared arrays, distributed by the strategy."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.data.datasets import Dataset
from common.data.formats import Images, Labels
from common.experiment import Experiment
from common.spec.batches import Batch as Batch
from common.spec.batches import Plan, epoch_order, shards
from common.spec.options import Precision
from tf_impl.precision import DTYPES

# What a pipeline gives: images, labels and count of a Batch. A plain tuple, of which a step makes a Batch when it is
# traced: tf.function takes longer to look through any other type, in every step.
Shard = tuple[tf.Tensor, tf.Tensor, tf.Tensor]


def normalise(images: tf.Tensor, dataset: Dataset, precision: Precision) -> tf.Tensor:
    """uint8 (n, H, W, C) to the network's input, (n, H, W, C) in its precision."""
    shift, scale = (tf.cast(values, DTYPES[precision]) for values in (dataset.shift, dataset.scale))
    return (tf.cast(images, DTYPES[precision]) - shift) * scale


class Shards:
    """The test set in its own order: the shards of the first batch, one for each replica, then of the second, ...

    Attributes:
      order: int64 (num_examples,): the examples in the order in which batches take them.
      bounds: int64 (num_batches, num_replicas, 3): start and stop of each shard in that order, and the size of its
        global batch; see `common.spec.batches.shards`.
    """

    def __init__(self, images: Images, labels: Labels, batch_size: int, num_replicas: int) -> None:
        self.images, self.labels = images, labels
        self.order, self.bounds = self.order_of(0), shards(len(images), batch_size, num_replicas)

    def order_of(self, epoch: int) -> NDArray[np.int64]:
        return np.arange(len(self.images))

    def __len__(self) -> int:
        """Number of shards, those of all replicas."""
        return self.bounds.shape[0] * self.bounds.shape[1]

    def __getitem__(self, index: int) -> tuple[Images, Labels, np.int64]:
        start, stop, count = self.bounds.reshape(-1, 3)[index]
        indices = self.order[start:stop]
        return self.images[indices], self.labels[indices], count


class TrainShards(Shards):
    """The shuffled shards of an epoch, which `set_epoch` chooses."""

    def __init__(self, images: Images, labels: Labels, plan: Plan, seed: int, num_replicas: int) -> None:
        self.images, self.labels, self.plan, self.seed = images, labels, plan, seed
        self.order, self.bounds = self.order_of(0), plan.shards(1, num_replicas)

    def order_of(self, epoch: int) -> NDArray[np.int64]:
        return epoch_order(self.seed, epoch + 1, self.plan.train_size)

    def set_epoch(self, epoch: int) -> None:
        """Epochs count from 0 here, as for PyTorch's DistributedSampler.

        The pipeline calls `__getitem__` while it runs: the order that is set here is the one that it reads.
        """
        self.order = self.order_of(epoch)


def make_shards(experiment: Experiment, strategy: tf.distribute.Strategy) -> tuple[TrainShards, Shards]:
    """Of the training and of the test set; the first one's `set_epoch` comes before every training epoch."""
    dataset, config, num_replicas = experiment.dataset, experiment.config, strategy.num_replicas_in_sync
    return (
        TrainShards(dataset.train_images, dataset.train_labels, experiment.plan, config.seed, num_replicas),
        Shards(dataset.test_images, dataset.test_labels, config.eval_batch_size, num_replicas),
    )


def step_signature(experiment: Experiment) -> tuple[tf.TensorSpec, ...]:
    """Images, labels and count of a `Batch`; the number of examples is open."""
    return (
        tf.TensorSpec([None, *experiment.network.image_shape], DTYPES[experiment.config.precision]),
        tf.TensorSpec([None], tf.int64),
        tf.TensorSpec([], tf.int64),
    )


def loader(experiment: Experiment, shards: Shards) -> Callable[[tf.Tensor], Shard]:
    """From a shard's index to the shard, for tf.data: a whole one at a time, not Python for each single image."""
    dataset, precision = experiment.dataset, experiment.config.precision

    def load(index: tf.Tensor) -> Shard:
        images, labels, count = tf.numpy_function(shards.__getitem__, [index], [tf.uint8, tf.int64, tf.int64])
        shard = normalise(images, dataset, precision), labels, count
        return tuple(
            tf.ensure_shape(*one) for one in zip(shard, ([None, *dataset.image_shape], [None], []), strict=True)
        )

    return load


def make_dataset(
    experiment: Experiment, strategy: tf.distribute.Strategy, shards: Shards
) -> tf.distribute.DistributedDataset:
    """An iteration over it gives each replica its shard of each batch, see `Shard`, prepared ahead of the steps."""

    def dataset_of_shards(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return tf.data.Dataset.range(len(shards)).map(loader(experiment, shards)).prefetch(tf.data.AUTOTUNE)

    # Instead of experimental_distribute_dataset, which would split batches by itself: they are sharded already.
    return strategy.distribute_datasets_from_function(dataset_of_shards)
