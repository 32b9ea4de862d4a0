"""TensorFlow's loops; see benchmarks.loops."""

import time

import keras
import tensorflow as tf

from benchmarks.within_a_run import Loop, timed
from common.experiment import Experiment
from tf_impl.data import make_dataset, make_shards
from tf_impl.networks import make_network
from tf_impl.weights import load_weights


def make_limit(experiment: Experiment) -> Loop:
    """Each step is a call of its graph. `--compile true` compiles it by XLA."""
    config, strategy = experiment.config, tf.distribute.get_strategy()
    network = make_network(experiment.network, config)
    load_weights(network, experiment.initial_weights)
    optimizer = keras.optimizers.SGD(1e-3, momentum=config.momentum)
    optimizer.build(network.trainable_variables)
    images, labels, _ = next(iter(make_dataset(strategy, make_shards(experiment, 1)[0])))

    @tf.function(jit_compile=True if config.compile else None)
    def train_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, network(images, training=True))
            loss = tf.reduce_sum(losses) / config.batch_size
        gradients = tape.gradient(loss, network.trainable_variables)
        optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))
        return loss

    return timed(lambda: train_step(images, labels), tf.test.experimental.sync_devices)


def make_usual(experiment: Experiment) -> Loop:
    """Arrays of floats, tf.data, a strategy, a written-out loop."""
    config, strategy = experiment.config, tf.distribute.get_strategy()
    images = experiment.dataset.train_images.astype("float32") / 255
    dataset = tf.data.Dataset.from_tensor_slices((images, experiment.dataset.train_labels))
    dataset = dataset.shuffle(len(images)).batch(config.batch_size).prefetch(tf.data.AUTOTUNE)
    dataset = strategy.experimental_distribute_dataset(dataset)
    with strategy.scope():
        loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        model = make_network(experiment.network, config)
        optimizer = keras.optimizers.SGD(config.learning_rate, momentum=config.momentum)
        accuracy = keras.metrics.SparseCategoricalAccuracy()

    def train_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            predictions = model(images, training=True)
            loss = tf.nn.compute_average_loss(loss_object(labels, predictions))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(labels, predictions)
        return loss

    @tf.function
    def distributed_train_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        losses = strategy.run(train_step, args=(images, labels))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    def loop(steps: int) -> float:
        start, total_loss = time.perf_counter(), 0.0
        for images, labels in dataset:
            total_loss += distributed_train_step(images, labels)
        print(f"loss {float(total_loss) / steps:.4f}, accuracy {float(accuracy.result()):.4f}")
        return time.perf_counter() - start

    return loop
