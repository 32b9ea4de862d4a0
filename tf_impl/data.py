"""Batches in TensorFlow: a tf.data pipeline over the shared arrays, distributed by the strategy."""

from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.batches import Plan, epoch_order, shards
from common.experiment import Experiment
from common.formats import Images, Labels
from tf_impl.model import DTYPES, normalise

# A replica's shard of a batch: normalised images (n, H, W, C) in the network's precision, labels int64 (n,), and the
# size of the global batch it is part of.
Batch = tuple[tf.Tensor, tf.Tensor, tf.Tensor]


class Shards:
    """The test set in its own order: the shards of the first batch, one for each replica, then of the second, ..."""

    def __init__(self, images: Images, labels: Labels, batch_size: int, num_replicas: int) -> None:
        self.images, self.labels = images, labels
        self.all_bounds = shards(len(images), batch_size, num_replicas)

    def order(self) -> NDArray[np.int64]:
        """int64 (num_examples,): the examples in the order in which batches take them."""
        return np.arange(len(self.images))

    def bounds(self) -> NDArray[np.int64]:
        """int64 (num_batches, num_replicas, 3): start, stop and global count of each shard, see `common.batches`."""
        return self.all_bounds

    def __call__(self) -> Iterator[tuple[Images, Labels, np.int64]]:
        order = self.order()
        for start, stop, count in self.bounds().reshape(-1, 3):
            indices = order[start:stop]
            yield self.images[indices], self.labels[indices], count


class TrainShards(Shards):
    """The shuffled shards of an epoch, which `set_epoch` chooses."""

    def __init__(self, images: Images, labels: Labels, plan: Plan, seed: int, num_replicas: int) -> None:
        self.images, self.labels, self.plan, self.seed, self.num_replicas = images, labels, plan, seed, num_replicas
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Epochs count from 0 here, as for PyTorch's DistributedSampler."""
        self.epoch = epoch

    def order(self) -> NDArray[np.int64]:
        return epoch_order(self.seed, self.epoch + 1, self.plan.train_size)

    def bounds(self) -> NDArray[np.int64]:
        return self.plan.shards(self.epoch + 1, self.num_replicas)


def make_shards(experiment: Experiment, strategy: tf.distribute.Strategy) -> tuple[TrainShards, Shards]:
    """Of the training and of the test set; the first one's `set_epoch` comes before every training epoch."""
    dataset, config, num_replicas = experiment.dataset, experiment.config, strategy.num_replicas_in_sync
    return (
        TrainShards(dataset.train_images, dataset.train_labels, experiment.plan, config.seed, num_replicas),
        Shards(dataset.test_images, dataset.test_labels, config.eval_batch_size, num_replicas),
    )


def batch_signature(experiment: Experiment, dtype: str | None = None) -> tuple[tf.TensorSpec, ...]:
    """What a `Batch` looks like; the number of examples is open. `dtype`: of the images; None: the network's."""
    return (
        tf.TensorSpec([None, *experiment.model.image_shape], dtype or DTYPES[experiment.config.precision]),
        tf.TensorSpec([None], tf.int64),
        tf.TensorSpec([], tf.int64),
    )


def make_dataset(
    experiment: Experiment, strategy: tf.distribute.Strategy, shards: Shards
) -> tf.distribute.DistributedDataset:
    """An iteration over it gives each replica its shard of each batch, see `Batch`, prepared ahead of the steps."""

    def prepare(images: tf.Tensor, labels: tf.Tensor, count: tf.Tensor) -> Batch:
        return normalise(images, experiment.dataset, experiment.config.precision), labels, count

    def dataset_of_shards(context: tf.distribute.InputContext) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_generator(shards, output_signature=batch_signature(experiment, "uint8"))
        return dataset.map(prepare).prefetch(tf.data.AUTOTUNE)

    # From a function, since the batches are sharded already: the strategy must not split them again.
    return strategy.distribute_datasets_from_function(dataset_of_shards)
