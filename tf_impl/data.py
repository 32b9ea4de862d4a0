"""Batches in TensorFlow: a tf.data pipeline over the shared arrays, distributed by the strategy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.data.datasets import Dataset
from common.data.formats import Images, Labels
from common.experiment import Experiment
from common.spec.batches import EVAL_BATCH_SIZE, epoch_order, shards
from common.spec.batches import Batch as Batch
from common.spec.options import Precision
from common.spec.randomness import positions, visits
from tf_impl.augment import Augment
from tf_impl.networks import DTYPES

# An element of a pipeline: inputs, labels and count of a Batch. It is a plain tuple, since tf.function needs more time
# for any other type in every step. A step makes a Batch of it when it is traced.
Shard = tuple[Any, tf.Tensor, tf.Tensor]


def normalise(images: tf.Tensor, dataset: Dataset, precision: Precision) -> tf.Tensor:
    """Stored images (n, H, W, C) to the network's input, (n, H, W, C) in its precision."""
    shift, scale = (tf.cast(values, DTYPES[precision]) for values in (dataset.shift, dataset.scale))
    return (tf.cast(images, DTYPES[precision]) - shift) * scale


class Shards:
    """The test set in its own order: the shards of the first batch, one for each replica, then those of the second, ...

    Attributes:
      visits: int64 (num_examples,): the examples in the order of the batches, see common/spec/randomness.py.
      bounds: int64 (num_batches, num_replicas, 3): start and stop of each shard in that order, and the size of its
        global batch; see `common.spec.batches.shards`.
    """

    epochs: tuple[int, int] = (0, 2**62)  # the first epoch, and the one after the last

    def __init__(self, experiment: Experiment, num_replicas: int) -> None:
        self.experiment, self.augmentation = experiment, None
        self.images, self.labels = experiment.dataset.test_images, experiment.dataset.test_labels
        self.num_replicas = num_replicas
        self.visits, self.bounds = self.visits_of(0), self.bounds_of(0)

    @property
    def batch_size(self) -> int:
        return EVAL_BATCH_SIZE

    def visits_of(self, epoch: int) -> NDArray[np.int64]:
        return np.arange(len(self.images))

    def bounds_of(self, epoch: int) -> NDArray[np.int64]:
        return shards(len(self.images), EVAL_BATCH_SIZE, self.num_replicas)

    def __len__(self) -> int:
        """Number of shards of all replicas."""
        return self.bounds.shape[0] * self.bounds.shape[1]

    def whole_batches(self) -> NDArray[np.int64]:
        """int64 (n,): the visits of all batches, in their order; fewer than `visits` if batches are left out."""
        return np.concatenate([self.visits[batch[0, 0] : batch[-1, 1]] for batch in self.bounds])

    def indices(self, replicas: range) -> NDArray[np.int64]:
        """Indices of the shards of these replicas, batch by batch."""
        return np.arange(len(self)).reshape(-1, self.num_replicas)[:, replicas].ravel()

    def __getitem__(self, index: int) -> tuple[Images, Labels, np.int64, NDArray[np.int64]]:
        """The stored images and labels, the size of the global batch, and the visits."""
        start, stop, count = self.bounds.reshape(-1, 3)[index]
        visits = self.visits[start:stop]
        indices = positions(visits)
        return self.images[indices], self.labels[indices], count, visits

    def prepare(self, images: tf.Tensor, visits: tf.Tensor) -> Any:
        """Converts stored images to a network's inputs, see `Batch`; augments them if there is an augmentation."""
        dataset, precision = self.experiment.dataset, self.experiment.config.precision
        if self.augmentation:
            images = Augment(self.augmentation, visits)(images)
        images = normalise(images, dataset, precision)
        return (images, visits) if self.experiment.network.drops else images


class TrainShards(Shards):
    """The shuffled shards of one epoch; `set_epoch` chooses the epoch."""

    def __init__(self, experiment: Experiment, num_replicas: int) -> None:
        self.experiment, self.augmentation = experiment, experiment.augmentation
        self.images, self.labels = experiment.dataset.train_images, experiment.dataset.train_labels
        self.num_replicas, self.epochs = num_replicas, (experiment.plan.epochs_done, experiment.plan.num_epochs)
        self.set_epoch(self.epochs[0])

    @property
    def batch_size(self) -> int:
        return self.experiment.config.batch_size

    def visits_of(self, epoch: int) -> NDArray[np.int64]:
        return visits(epoch + 1, epoch_order(self.experiment.config.seed, epoch + 1, self.experiment.plan.train_size))

    def bounds_of(self, epoch: int) -> NDArray[np.int64]:
        return self.experiment.plan.shards(epoch + 1, self.num_replicas)

    def set_epoch(self, epoch: int) -> None:
        """Sets the order of examples in an epoch, counted from 0 as in PyTorch's DistributedSampler.

        The pipeline calls `__getitem__` while it runs, so it reads the order that is set here.
        """
        self.visits, self.bounds = self.visits_of(epoch), self.bounds_of(epoch)


def make_shards(experiment: Experiment, num_replicas: int) -> tuple[TrainShards, Shards]:
    """The shards of the training and of the test set. Call `set_epoch` of the first before every training epoch."""
    return TrainShards(experiment, num_replicas), Shards(experiment, num_replicas)


def step_signature(experiment: Experiment) -> tuple[Any, tf.TensorSpec, tf.TensorSpec]:
    """The signature of a `Batch`: inputs, labels and count, with any number of examples."""
    images = tf.TensorSpec([None, *experiment.network.image_shape], DTYPES[experiment.config.precision])
    visits, labels = tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.int64)
    return (images, visits) if experiment.network.drops else images, labels, tf.TensorSpec([], tf.int64)


def loader(shards: Shards) -> Callable[[tf.Tensor], Shard]:
    """A function for tf.data from a shard's index to the shard; it calls Python once for a shard, not for an image."""
    shapes, types = ([None, *shards.images.shape[1:]], [None], [], [None]), (shards.images.dtype, *[tf.int64] * 3)

    def load(index: tf.Tensor) -> Shard:
        arrays = tf.numpy_function(shards.__getitem__, [index], types)
        images, labels, count, visits = map(tf.ensure_shape, arrays, shapes)
        return shards.prepare(images, visits), labels, count

    return load


def replicas_of(context: tf.distribute.InputContext, num_replicas: int) -> range:
    """The replicas, out of `num_replicas`, that belong to the process of this input pipeline."""
    own = num_replicas // context.num_input_pipelines
    return range(context.input_pipeline_id * own, (context.input_pipeline_id + 1) * own)


def make_dataset(strategy: tf.distribute.Strategy, shards: Shards) -> tf.distribute.DistributedDataset:
    """A dataset that gives each replica its shard of each batch, see `Shard`, prepared ahead of the steps.

    If the strategy has several processes, each of them prepares the shards of its own replicas.
    """

    def dataset_of_shards(context: tf.distribute.InputContext) -> tf.data.Dataset:
        replicas = replicas_of(context, shards.num_replicas)

        def indices(_: tf.Tensor) -> tf.data.Dataset:
            """Indices of the shards of this epoch. There are fewer if a resumed training starts within the epoch."""
            indices_of = tf.numpy_function(lambda: shards.indices(replicas), [], tf.int64)
            return tf.data.Dataset.from_tensor_slices(tf.ensure_shape(indices_of, [None]))

        return tf.data.Dataset.range(1).flat_map(indices).map(loader(shards)).prefetch(tf.data.AUTOTUNE)

    # Instead of experimental_distribute_dataset, which would split batches by itself: they are sharded already.
    return strategy.distribute_datasets_from_function(dataset_of_shards)
