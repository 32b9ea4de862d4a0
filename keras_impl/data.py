"""Batches in Keras: a tf.data pipeline of whole batches, which fit splits over the replicas."""

from typing import Any

import tensorflow as tf

from common.experiment import Experiment
from tf_impl.data import Shards, batch_signature, loader
from tf_impl.networks import DTYPES

# fit does not take a Batch, but x, y and sample_weight: a Batch's inputs, its labels, and each example's weight in the
# mean over the global batch, (n,).
WeightedBatch = tuple[Any, tf.Tensor, tf.Tensor]


def weighted_signature(experiment: Experiment) -> tuple[Any, tf.TensorSpec, tf.TensorSpec]:
    """The signature of a `WeightedBatch`, with any number of examples."""
    inputs, labels, _ = batch_signature(experiment)
    return inputs, labels, tf.TensorSpec([None], DTYPES[experiment.config.precision])


def make_dataset(experiment: Experiment, batches: Shards) -> tf.data.Dataset:
    """A dataset of whole batches, see `WeightedBatch`, prepared ahead of the steps; `batches`: those of one replica."""

    def weighted(inputs: Any, labels: tf.Tensor, count: tf.Tensor) -> WeightedBatch:
        # Each example's share of the global batch, since a replica can't see the size of the global batch.
        return inputs, labels, tf.fill(tf.shape(labels), 1 / tf.cast(count, DTYPES[experiment.config.precision]))

    dataset = tf.data.Dataset.range(len(batches)).map(loader(batches)).map(weighted)
    return dataset.prefetch(tf.data.AUTOTUNE)
