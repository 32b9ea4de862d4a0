"""TensorFlow's limit: a bare loop beside tf_impl's; see benchmarks.inside."""

import contextlib
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf

import tf_impl.train
from benchmarks.inside import BareLoop, PairedRecorder
from common.cli import parse_train_config
from common.errors import whole_program
from common.experiment import Experiment
from tf_impl.data import train_data
from tf_impl.model import load_weights, make_model, normalise
from tf_impl.train import SUM, synchronize


def make_bare(experiment: Experiment) -> BareLoop:
    """The training step over one batch in memory, as the network's input; a call of its graph for each step."""
    config = experiment.config
    kind = config.accelerator.upper()
    strategy = tf.distribute.MirroredStrategy(
        [f"{kind}:{index}" for index in range(config.devices)],
        cross_device_ops=tf.distribute.ReductionToOneDevice() if kind == "CPU" else None,
    )
    several = config.devices > 1
    with strategy.scope() if several else contextlib.nullcontext():
        model = make_model(experiment.model, config.precision)
        load_weights(model, experiment.initial_weights)
        optimizer = keras.optimizers.SGD(1e-3, momentum=config.momentum)
        optimizer.build(model.trainable_variables)
    data = train_data(experiment, strategy)

    def first_shard(*inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        images, labels, _ = data.shard(*inputs)
        return normalise(images, experiment.dataset, config.precision), labels

    batch = strategy.run(tf.function(first_shard), args=data.first())

    def replica_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_sum(losses) / config.batch_size
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        if several:
            return strategy.reduce(SUM, strategy.run(replica_step, args=(images, labels)), axis=None)
        return replica_step(images, labels)

    def loop(steps: int) -> float:
        synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            train_step(*batch)
        synchronize()
        return time.perf_counter() - start

    return loop


if __name__ == "__main__":
    with whole_program("tf_limit"):
        PairedRecorder.make_bare = staticmethod(make_bare)
        tf_impl.train.Recorder = PairedRecorder
        tf_impl.train.main(parse_train_config("benchmarks.loops.tf_limit", "TensorFlow's limit."))
