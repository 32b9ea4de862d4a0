"""Batches in Keras: a tf.data pipeline of whole batches, which fit splits over the replicas."""

from typing import Any

import tensorflow as tf

from common.experiment import Experiment
from common.spec.batches import Batch as Batch
from tf_impl.data import Shards, loader, make_shards, step_signature
from tf_impl.data import TrainShards as TrainShards
from tf_impl.precision import DTYPES

# Instead of a Batch, which fit does not know, its x, y and sample_weight: a Batch's inputs, its labels, and for each
# example its weight in the mean over the global batch, (n,).
WeightedBatch = tuple[Any, tf.Tensor, tf.Tensor]


def make_batches(experiment: Experiment) -> tuple[TrainShards, Shards]:
    """Of the training and of the test set, not split; the first one's `set_epoch` comes before every epoch."""
    return make_shards(experiment, num_replicas=1)


def weighted_signature(experiment: Experiment) -> tuple[Any, tf.TensorSpec, tf.TensorSpec]:
    """What a `WeightedBatch` looks like; the number of examples is open."""
    inputs, labels, _ = step_signature(experiment)
    return inputs, labels, tf.TensorSpec([None], DTYPES[experiment.config.precision])


def make_dataset(experiment: Experiment, batches: Shards) -> tf.data.Dataset:
    """An iteration over it gives every batch, see `WeightedBatch`, prepared ahead of the steps."""

    def weighted(inputs: Any, labels: tf.Tensor, count: tf.Tensor) -> WeightedBatch:
        # Instead of the size of the global batch, which a replica can't see: each example's share of it.
        return inputs, labels, tf.fill(tf.shape(labels), 1 / tf.cast(count, DTYPES[experiment.config.precision]))

    dataset = tf.data.Dataset.range(len(batches)).map(loader(batches)).map(weighted)
    return dataset.prefetch(tf.data.AUTOTUNE)
