"""The additions of `--mode tuned` in TensorFlow: the same training, but faster. This file is long because all are here.

train.py is complete without this file.
"""

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.experiment import Experiment
from common.record.recorder import Recorder
from common.spec.randomness import positions
from tf_impl.data import Batch, Shard, Shards, distribute, gather
from tf_impl.networks import DTYPES
from tf_impl.train import ReplicaSteps, Shares
from tf_impl.weights import statistics_kept

SUM, Strategy = tf.distribute.ReduceOp.SUM, tf.distribute.Strategy

# --- The data: images stay as they are stored until they are in the step, and are normalised there ---


class Resident:
    """A data set in the devices' memory; each replica gathers its own shard of a batch, as a part of the step.

    With few cores, a pipeline's threads slow the step down while they prepare batches.

    The order of calls: `epoch` once an epoch; then, in the step's graph, `inputs` for each batch, and on each
    replica `shard`, which makes a `Batch` of these inputs.
    """

    def __init__(self, shards: Shards, strategy: Strategy) -> None:
        self.shards = shards
        self.images, self.labels = (on_devices(array, strategy) for array in (shards.images, shards.labels))

    def epoch(self) -> tuple[tf.Tensor, tf.Tensor]:
        """The visits in the order of the batches, and the bounds of the shards in that order.

        In the first epoch of a resumed run, or the last one with --max-steps, batches are missing. Their bounds are
        filled up, since the step's graph is traced for one number of batches.
        """
        whole = -(-len(self.shards.images) // self.shards.batch_size)
        missing = whole - len(self.shards.bounds)
        return on_host(self.shards.visits), on_host(np.pad(self.shards.bounds, [(0, missing), (0, 0), (0, 0)]))

    def inputs(self, epoch: tuple[tf.Tensor, tf.Tensor], batch: tf.Tensor) -> tuple[tf.Tensor, ...]:
        visits, bounds = epoch
        return self.images, self.labels, visits, bounds[batch]

    def shard(self, images: tf.Tensor, labels: tf.Tensor, visits: tf.Tensor, bounds: tf.Tensor) -> Batch:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        start, stop, count = tf.unstack(bounds[replica])
        visits = visits[start:stop]
        indices = positions(visits)
        return Batch(self.shards.prepare(tf.gather(images, indices), visits), tf.gather(labels, indices), count)


class Streamed:
    """The same from a tf.data pipeline, which gathers and copies batches ahead of the steps."""

    def __init__(self, shards: Shards, strategy: Strategy) -> None:
        self.shards, options = shards, tf.data.Options()
        options.autotune.enabled = False  # at the end of an epoch its iterator would wait for the thread that tunes it

        def load(indices: tf.data.Dataset) -> tf.data.Dataset:
            return indices.map(gather(shards)).prefetch(2 * shards.num_replicas).with_options(options)

        self.dataset = distribute(strategy, shards, load)

    def epoch(self) -> Any:
        return iter(self.dataset)

    def inputs(self, iterator: Any, batch: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return next(iterator)

    def shard(self, images: tf.Tensor, labels: tf.Tensor, count: tf.Tensor, visits: tf.Tensor) -> Batch:
        return Batch(self.shards.prepare(images, visits), labels, count)


def on_host(array: NDArray[Any]) -> tf.Tensor:
    """`array` once in the host's memory, not as a constant in a graph."""
    with tf.device("CPU:0"):
        return tf.constant(array)


def on_devices(array: NDArray[Any], strategy: Strategy) -> Any:
    """`array` on every GPU of this process, or once in the host's memory if the replicas are on the CPU."""
    if strategy.num_replicas_in_sync == 1:
        return tf.constant(array)
    devices = strategy.extended.worker_devices

    def place(context: tf.distribute.InputContext) -> tf.Tensor:
        with tf.device(devices[context.replica_id_in_sync_group % len(devices)]):
            return tf.constant(array)

    return on_host(array) if "CPU" in devices[0] else strategy.experimental_distribute_values_from_function(place)


# --- The loop: one call of a graph takes all steps until the recorder next fetches or reads the clock ---


class TunedLoop:
    """`train_steps` and `evaluate`, which replace those of train.py. A call takes as long as a small network's step."""

    def __init__(
        self,
        experiment: Experiment,
        strategy: Strategy,
        shards: tuple[Shards, Shards],
        steps: ReplicaSteps,
        recorder: Recorder,
    ) -> None:
        self.experiment, self.strategy, self.recorder = experiment, strategy, recorder
        source = Resident if experiment.is_resident else Streamed
        self.shards, self.test_shards = shards
        self.training, self.testing = (source(bounds, strategy) for bounds in shards)
        self.train_step, self.update_step, self.eval_step = steps
        self.call, self.eval_call = tf.function(self.take_steps), tf.function(self.evaluate_batches)
        # Traced now, during start-up, and not in the first evaluation.
        self.eval_call.get_concrete_function(self.testing.epoch(), tf.constant(len(self.test_shards.bounds)))

    def on_all(
        self, data: Resident | Streamed, step: Callable[..., tuple[tf.Tensor, ...]], epoch: Any, batch: tf.Tensor
    ) -> list[tf.Tensor]:
        """What a step returns for a batch of `data`, summed over the replicas."""

        def replica_step(*inputs: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return step(*data.shard(*inputs))

        shares = self.strategy.run(replica_step, args=data.inputs(epoch, batch))
        return [self.strategy.reduce(SUM, share, axis=None) for share in shares]

    def take_steps(self, epoch: Any, first: tf.Tensor, number: tf.Tensor, last: tf.Tensor) -> Shares:
        """Global losses and correct answers, (number,) each, of an epoch's steps `first`, `first` + 1, ...

        Args:
          last: number of the epoch's batches.
        """
        accumulated, loss_dtype = self.experiment.plan.accumulate_grad_batches, DTYPES[self.experiment.config.precision]
        losses, correct = tf.TensorArray(loss_dtype, number), tf.TensorArray(tf.int64, number)
        for step in tf.range(number):
            if accumulated == 1:
                loss, right = self.on_all(self.training, self.train_step, epoch, first + step)
            else:
                loss, right = tf.zeros([], loss_dtype), tf.zeros([], tf.int64)
                batch = (first + step) * accumulated
                for index in tf.range(batch, tf.minimum(batch + accumulated, last)):
                    shares = self.on_all(self.training, self.train_step, epoch, index)
                    loss, right = loss + shares[0], right + shares[1]
                self.strategy.run(self.update_step)
            losses, correct = losses.write(step, loss), correct.write(step, right)
        return losses.stack(), correct.stack()

    def evaluate_batches(self, epoch: Any, number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Sum of losses, number of correct answers and of examples of the first `number` batches."""
        loss_sum, correct, count = tf.constant(0.0, tf.float64), tf.constant(0, tf.int64), tf.constant(0, tf.int64)
        for batch in tf.range(number):
            shares = self.on_all(self.testing, self.eval_step, epoch, batch)
            loss_sum, correct, count = loss_sum + shares[0], correct + shares[1], count + shares[2]
        return loss_sum, correct, count

    def train_steps(self, epoch: int) -> Iterator[tuple[tf.Tensor, tf.Tensor, int]]:
        """Takes the steps of an epoch, counted from 0; gives those of each call, (number,) each, and their number."""
        self.shards.set_epoch(epoch)
        inputs, last = self.training.epoch(), tf.constant(len(self.shards.bounds))
        steps, step = len(self.experiment.plan.steps(epoch + 1)), 0
        while step < steps:
            number = self.recorder.steps_to_go()
            losses, correct = self.call(inputs, tf.constant(step), tf.constant(number), last)
            yield losses, correct, number
            step += number

    def evaluate(self) -> tuple[float, int, int]:
        """Sum of losses, number of correct answers and of examples of the whole test set, each example once."""
        sums = self.eval_call(self.testing.epoch(), tf.constant(len(self.test_shards.bounds)))
        loss_sum, correct, count = (total.numpy().item() for total in sums)
        return loss_sum, correct, count


def compile_ahead(
    experiment: Experiment, strategy: Strategy, shards: Shards, network: keras.Model, compute: Callable[..., Any]
) -> None:
    """Compiles, during start-up, for both sizes of shards: those of a full batch and those of the last one.

    Args:
      compute: train.py's `forward_backward`, compiled when it is called.
    """
    shape = experiment.network.image_shape
    call = tf.function(lambda *shard: strategy.run(lambda *one: compute(*one), args=shard))
    for bounds in shards.bounds[[0, -1]]:
        starts, stops, counts = bounds.T
        sizes = stops - starts

        def shard_of(context: Any, sizes: Any = sizes, counts: Any = counts) -> Shard:
            replica = context.replica_id_in_sync_group
            images = tf.zeros([sizes[replica], *shape], shards.images.dtype)
            labels = tf.zeros([sizes[replica]], tf.int64)
            return shards.prepare(images, labels), labels, tf.constant(counts[replica])

        with statistics_kept(network):
            call(*strategy.experimental_distribute_values_from_function(shard_of))
