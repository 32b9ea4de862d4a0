"""Batches in TensorFlow: gathered as a part of the step, or by a tf.data pipeline ahead of it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.batches import epoch_order, shards
from common.experiment import Experiment
from common.formats import Images, Labels

# A replica's shard: images uint8 (n, H, W, C), labels int64 (n,), and the size of the global batch it is part of.
Shard = tuple[tf.Tensor, tf.Tensor, tf.Tensor]


class Resident:
    """A data set in the devices' memory; each replica gathers its own shard of a batch, as a part of the step.

    A step's graph takes from it, in this order: `epoch` once an epoch, `inputs` for each batch, and on each
    replica `shard`, which makes examples of them.
    """

    def __init__(
        self, images: Images, labels: Labels, batch_size: int, strategy: tf.distribute.Strategy, seed: int | None
    ) -> None:
        """`seed`: of the order, new in every epoch; None: their own order."""
        self.size, self.seed = len(images), seed
        self.images, self.labels = (on_devices(array, strategy) for array in (images, labels))
        self.shards = shards(len(images), batch_size, strategy.num_replicas_in_sync)
        self.num_batches, self.bounds = len(self.shards), on_host(self.shards)

    def epoch(self, epoch: int) -> tf.Tensor:
        order = np.arange(self.size) if self.seed is None else epoch_order(self.seed, epoch, self.size)
        return on_host(order)

    def inputs(self, order: tf.Tensor, batch: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return self.images, self.labels, order, self.bounds[batch]

    def first(self) -> tuple[tf.Tensor, ...]:
        """The inputs of the very first batch, without a step."""
        return self.inputs(self.epoch(1), tf.constant(0))

    def shard(self, images: tf.Tensor, labels: tf.Tensor, order: tf.Tensor, bounds: tf.Tensor) -> Shard:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        start, stop, count = tf.unstack(bounds[replica])
        indices = order[start:stop]
        return tf.gather(images, indices), tf.gather(labels, indices), count


class Streamed:
    """The same from a tf.data pipeline, which gathers and copies batches ahead of the steps."""

    def __init__(
        self, images: Images, labels: Labels, batch_size: int, strategy: tf.distribute.Strategy, seed: int | None
    ) -> None:
        size = len(images)
        self.shards = bounds = shards(size, batch_size, strategy.num_replicas_in_sync)
        self.num_batches = len(bounds)

        def order(epoch: NDArray[np.int64]) -> NDArray[np.int64]:
            return np.arange(size) if seed is None else epoch_order(seed, int(epoch), size)

        def rows(indices: NDArray[np.int64]) -> tuple[Images, Labels]:
            return images[indices], labels[indices]  # from the file, where they are memory-mapped

        def gather(order: tf.Tensor, bound: tf.Tensor) -> Shard:
            start, stop, count = tf.unstack(bound)
            found = tf.numpy_function(rows, [order[start:stop]], [tf.uint8, tf.int64])
            return tf.ensure_shape(found[0], [None, *images.shape[1:]]), tf.ensure_shape(found[1], [None]), count

        def batches(epoch: tf.Tensor) -> tf.data.Dataset:
            """The shards of the first batch, one for each replica, then those of the second, and so on."""
            indices = tf.ensure_shape(tf.numpy_function(order, [epoch], tf.int64), [size])
            return tf.data.Dataset.from_tensor_slices(bounds.reshape(-1, 3)).map(lambda bound: gather(indices, bound))

        # Nothing is left to be tuned, and the thread that would do it is waited for when an iterator ends.
        options = tf.data.Options()
        options.autotune.enabled = False
        data = tf.data.Dataset.range(1, tf.int64.max).flat_map(batches)
        data = data.prefetch(2 * strategy.num_replicas_in_sync).with_options(options)
        # From a function: the batches are sharded already, and the strategy must not split them again.
        self.batches = strategy.distribute_datasets_from_function(lambda context: data)
        self.iterator = iter(self.batches)

    def epoch(self, epoch: int) -> Any:
        return self.iterator

    def inputs(self, iterator: Any, batch: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return next(iterator)

    def first(self) -> tuple[tf.Tensor, ...]:
        return next(iter(self.batches))

    def shard(self, images: tf.Tensor, labels: tf.Tensor, count: tf.Tensor) -> Shard:
        return images, labels, count


Data = Resident | Streamed


def train_data(experiment: Experiment, strategy: tf.distribute.Strategy) -> Data:
    """The training set, each epoch in its own order."""
    dataset, config = experiment.dataset, experiment.config
    source = Resident if config.data_on == "device" else Streamed
    return source(dataset.train_images, dataset.train_labels, config.batch_size, strategy, config.seed)


def test_data(experiment: Experiment, strategy: tf.distribute.Strategy) -> Data:
    """The test set in its own order."""
    dataset, config = experiment.dataset, experiment.config
    source = Resident if config.data_on == "device" else Streamed
    return source(dataset.test_images, dataset.test_labels, config.eval_batch_size, strategy, None)


def black_shards(
    strategy: tf.distribute.Strategy, bounds: NDArray[np.int64], image_shape: tuple[int, int, int]
) -> tuple[Any, Any, Any]:
    """Shards of zeros for all replicas, as large as those of the batch with these `bounds`, int64 (replicas, 3)."""
    starts, stops, counts = bounds.T
    sizes = stops - starts

    def of_each(make: Callable[[int], tf.Tensor]) -> Any:
        return strategy.experimental_distribute_values_from_function(
            lambda context: make(context.replica_id_in_sync_group)
        )

    return (
        of_each(lambda replica: tf.zeros([sizes[replica], *image_shape], tf.uint8)),
        of_each(lambda replica: tf.zeros([sizes[replica]], tf.int64)),
        of_each(lambda replica: tf.constant(counts[replica])),
    )


def on_host(array: NDArray[Any]) -> tf.Tensor:
    """In the host's memory, once, and not as a constant in a graph."""
    with tf.device("CPU:0"):
        return tf.constant(array)


def on_devices(array: NDArray[Any], strategy: tf.distribute.Strategy) -> Any:
    """On every GPU; in the host's memory once, if that is where the replicas are."""
    devices = strategy.extended.worker_devices

    def place(context: Any) -> tf.Tensor:
        with tf.device(devices[context.replica_id_in_sync_group]):
            return tf.constant(array)

    return on_host(array) if "CPU" in devices[0] else strategy.experimental_distribute_values_from_function(place)
