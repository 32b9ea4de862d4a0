"""Batches in TensorFlow: a tf.data pipeline that gives each replica its shard of each batch."""

from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.batches import epoch_order, shards
from common.experiment import Experiment

# A batch: images uint8 (n, H, W, C), labels int64 (n,), and the size of the global batch it is part of.
Batch = tuple[tf.Tensor, tf.Tensor, tf.Tensor]


def train_data(experiment: Experiment, strategy: tf.distribute.Strategy) -> tf.distribute.DistributedDataset:
    """All batches of all epochs, one after the other, each epoch in its own order."""
    dataset, config, plan = experiment.dataset, experiment.config, experiment.plan
    images, labels = on_host(dataset.train_images), on_host(dataset.train_labels)

    def order(epoch: NDArray[np.int64]) -> NDArray[np.int64]:
        return epoch_order(config.seed, int(epoch), plan.train_size)

    def epoch_batches(epoch: tf.Tensor) -> tf.data.Dataset:
        indices = tf.ensure_shape(tf.numpy_function(order, [epoch], tf.int64), [plan.train_size])
        return batches(images, labels, indices, config.batch_size, config.devices)

    epochs = tf.data.Dataset.range(1, plan.num_epochs + 1)
    return distribute(epochs.flat_map(epoch_batches), strategy)


def test_data(experiment: Experiment, strategy: tf.distribute.Strategy) -> tf.distribute.DistributedDataset:
    """The test set once, in its own order."""
    dataset, config = experiment.dataset, experiment.config
    images, labels = on_host(dataset.test_images), on_host(dataset.test_labels)
    order = on_host(np.arange(len(dataset.test_images)))
    return distribute(batches(images, labels, order, config.eval_batch_size, config.devices), strategy)


def batches(
    images: tf.Tensor, labels: tf.Tensor, order: tf.Tensor, batch_size: int, num_replicas: int
) -> tf.data.Dataset:
    """The shards of the first batch, one for each replica, then those of the second, and so on."""
    bounds = shards(len(images), batch_size, num_replicas).reshape(-1, 3)

    def gather(bound: tf.Tensor) -> Batch:
        start, stop, count = tf.unstack(bound)
        indices = order[start:stop]
        return tf.gather(images, indices), tf.gather(labels, indices), count

    return tf.data.Dataset.from_tensor_slices(bounds).map(gather)


def distribute(data: tf.data.Dataset, strategy: tf.distribute.Strategy) -> tf.distribute.DistributedDataset:
    # Nothing is left to be tuned, and the thread that would do it is waited for when an iterator ends.
    options = tf.data.Options()
    options.autotune.enabled = False
    data = data.prefetch(2 * strategy.num_replicas_in_sync).with_options(options)
    # From a function: the batches are sharded already, and the strategy must not split them again.
    return strategy.distribute_datasets_from_function(lambda context: data)


def on_host(array: NDArray[Any]) -> tf.Tensor:
    """In the host's memory, once, and not as a constant in a graph."""
    with tf.device("CPU:0"):
        return tf.constant(array)
