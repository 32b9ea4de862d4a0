"""TensorFlow's limit: a bare loop in turns with tf_impl's; see benchmarks.within_a_run."""

import time

import keras
import tensorflow as tf

from benchmarks.within_a_run import BareLoop, train_beside
from common.experiment import Experiment
from tf_impl.backend import BACKEND
from tf_impl.data import make_dataset, make_shards
from tf_impl.networks import make_network
from tf_impl.train import SUM
from tf_impl.weights import load_weights


def make_bare(experiment: Experiment) -> BareLoop:
    """A loop of the training step on one batch, in memory as the network's input; each step is a call of its graph.

    `--compile true` compiles it by XLA.
    """
    config = experiment.config
    kind, several = config.accelerator.upper(), config.devices > 1
    strategy = tf.distribute.get_strategy()
    if several:
        strategy = tf.distribute.MirroredStrategy(
            [f"{kind}:{index}" for index in range(config.devices)],
            cross_device_ops=tf.distribute.ReductionToOneDevice() if kind == "CPU" else None,
        )
    with strategy.scope():
        network = make_network(experiment.network, config)
        load_weights(network, experiment.initial_weights)
        optimizer = keras.optimizers.SGD(1e-3, momentum=config.momentum)
        optimizer.build(network.trainable_variables)
    train_shards, _ = make_shards(experiment, strategy.num_replicas_in_sync)
    first_images, first_labels, _ = next(iter(make_dataset(strategy, train_shards)))

    def replica_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = network(images, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_sum(losses) / config.batch_size
        gradients = tape.gradient(loss, network.trainable_variables)
        optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))
        return loss

    @tf.function(jit_compile=True if config.compile and not several else None)  # XLA can't compile a merge of replicas
    def train_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        if several:
            return strategy.reduce(SUM, strategy.run(replica_step, args=(images, labels)), axis=None)
        return replica_step(images, labels)

    def loop(steps: int) -> float:
        tf.test.experimental.sync_devices()
        start = time.perf_counter()
        for _ in range(steps):
            train_step(first_images, first_labels)
        tf.test.experimental.sync_devices()
        return time.perf_counter() - start

    return loop


if __name__ == "__main__":
    train_beside(make_bare, BACKEND, "benchmarks.loops.tf_limit")
