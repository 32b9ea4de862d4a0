"""The data of `--mode tutorial` in Keras on TensorFlow, and what reports its steps.

The pages, as of Keras 3.15, are "Simple MNIST convnet" (examples/vision/mnist_convnet.py in keras-team/keras-io) and,
for several devices, "Multi-GPU distributed training with TensorFlow" (guides/distributed_training_with_tensorflow.py).
They teach arrays of floats, `compile` with a loss and metrics (tutorial.py), and `fit`, which by default
compiles the step with XLA and shows progress.
"""

from typing import Any

import tensorflow as tf

from common.experiment import Experiment
from keras_impl.train import Recording
from keras_impl.tutorial import StepTotals
from tf_impl.data import Shards, of_epoch
from tf_impl.tutorial import Arrays


def make_dataset(experiment: Experiment, shards: Shards) -> tf.data.Dataset:
    """A dataset of whole batches, which fit splits over the replicas.

    It does what fit does with arrays: it gathers each batch from them. But the order is that of common/spec.
    """
    arrays, smoothing = Arrays(shards), experiment.config.label_smoothing

    def batch(visits: tf.Tensor) -> tuple[Any, tf.Tensor]:
        inputs, labels = arrays.prepare(*arrays.gather(visits))
        return inputs, tf.one_hot(labels, experiment.network.num_classes) if smoothing else labels

    batches = of_epoch(shards.whole_batches).batch(shards.batch_size).map(batch).prefetch(tf.data.AUTOTUNE)
    options = tf.data.Options()
    # One process has all replicas; TensorFlow would warn that it can't divide a counted dataset among processes.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # tf.data can't know the number of batches. fit must know it, to stop after the last step.
    return batches.apply(tf.data.experimental.assert_cardinality(len(shards))).with_options(options)


class TutorialRecording(Recording):
    """Reports what Keras's metrics say, which sum over the examples since the start of the epoch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_begin(epoch, logs)
        self.totals = StepTotals()

    def record_steps(self, logs: Any) -> None:
        count = self.recorder.plan.count(self.recorder.steps_done + 1)
        self.recorder.step(*self.totals.step(logs, count, self.model.distribute_strategy.num_replicas_in_sync))

    def on_test_end(self, logs: Any = None) -> None:
        (accuracy,) = (metric for metric in self.model.metrics[1].metrics if metric.name == "accuracy")
        correct, count = (int(tf.convert_to_tensor(total)) for total in (accuracy.total, accuracy.count))
        self.recorder.end_epoch(float(logs["loss_sum"]), correct, count)
