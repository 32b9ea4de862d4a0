"""The additions of `--mode tutorial` in TensorFlow: the data path that TensorFlow's own documentation teaches.

The pages, as of TensorFlow 2.21, are "Custom training with tf.distribute.Strategy"
(site/en/tutorials/distribute/custom_training.ipynb in tensorflow/docs) and "Better performance with the tf.data API"
(site/en/guide/data_performance.ipynb). They teach arrays of floats, which tf.data cuts into examples and batches, and
which the strategy distributes; and the mean of the losses of a replica's shard, which `forward_backward` (train.py)
takes if a batch does not give the size of the global one.
"""

from typing import Any

import tensorflow as tf

from common.spec.randomness import positions
from tf_impl.data import Shards, normalise, of_epoch


class Arrays:
    """Images and labels of a set, as the pages keep them: as tensors, the images as normalised floats."""

    def __init__(self, shards: Shards) -> None:
        self.experiment, self.augmentation, self.shards = shards.experiment, shards.augmentation, shards
        with tf.device("CPU"):
            self.images, self.labels = tf.constant(shards.images), tf.constant(shards.labels)
            if not self.augmentation:
                self.images = normalise(self.images, self.experiment.dataset, self.experiment.config.precision)

    def gather(self, visits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The images and labels of these visits, (n,), and the visits."""
        return tf.gather(self.images, positions(visits)), tf.gather(self.labels, positions(visits)), visits

    def prepare(self, images: tf.Tensor, labels: tf.Tensor, visits: tf.Tensor) -> tuple[Any, tf.Tensor]:
        """Inputs, see `Batch`, and labels; the images are augmented if there is an augmentation."""
        if self.augmentation:
            return self.shards.prepare(images, visits), labels
        return (images, visits) if self.experiment.network.drops else images, labels


def make_batches(shards: Shards) -> tf.data.Dataset:
    """The batches of an epoch, inputs and labels, prepared ahead of the steps."""
    arrays = Arrays(shards)

    def examples(visits: tf.Tensor) -> tf.data.Dataset:
        gathered = arrays.gather(visits)
        # The arrays are in the order of common/spec. So the buffer of shuffle has size 1, which keeps the order.
        if not arrays.augmentation:
            return tf.data.Dataset.from_tensor_slices(arrays.prepare(*gathered)).shuffle(1)
        return tf.data.Dataset.from_tensor_slices(gathered).shuffle(1).map(augmented)

    def augmented(*example: tf.Tensor) -> Any:
        return tf.nest.map_structure(lambda part: part[0], arrays.prepare(*(part[None] for part in example)))

    return of_epoch(shards.whole_batches, examples).batch(shards.batch_size).prefetch(tf.data.AUTOTUNE)
