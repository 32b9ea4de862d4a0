"""Batches in Keras: a tf.data pipeline of whole batches, which fit splits over the replicas."""

import tensorflow as tf

from common.experiment import Experiment
from common.spec.batches import Batch as Batch
from tf_impl.data import Shards, loader, step_signature
from tf_impl.data import TrainShards as TrainShards

# Instead of a Batch, which fit does not know, its x, y and sample_weight: normalised images (n, H, W, C) in the
# network's precision, labels int64 (n,), and each example's weight in the mean over its global batch (n,).
WeightedBatch = tuple[tf.Tensor, tf.Tensor, tf.Tensor]


def make_batches(experiment: Experiment) -> tuple[TrainShards, Shards]:
    """Of the training and of the test set, not split; the first one's `set_epoch` comes before every epoch."""
    dataset, config = experiment.dataset, experiment.config
    return (
        TrainShards(dataset.train_images, dataset.train_labels, experiment.plan, config.seed, num_replicas=1),
        Shards(dataset.test_images, dataset.test_labels, config.eval_batch_size, num_replicas=1),
    )


def weighted_signature(experiment: Experiment) -> tuple[tf.TensorSpec, ...]:
    """What a `WeightedBatch` looks like; the number of examples is open."""
    images, labels, _ = step_signature(experiment)
    return images, labels, tf.TensorSpec([None], images.dtype)


def make_dataset(experiment: Experiment, batches: Shards) -> tf.data.Dataset:
    """An iteration over it gives every batch, see `WeightedBatch`, prepared ahead of the steps."""

    def weighted(images: tf.Tensor, labels: tf.Tensor, count: tf.Tensor) -> WeightedBatch:
        # Instead of the size of the global batch, which a replica can't see: each example's share of it.
        return images, labels, tf.fill(tf.shape(labels), 1 / tf.cast(count, images.dtype))

    dataset = tf.data.Dataset.range(len(batches)).map(loader(experiment, batches)).map(weighted)
    return dataset.prefetch(tf.data.AUTOTUNE)
