"""MirroredStrategy: one program, a copy of every variable on each device, and a training step written out.

env NUM_DEVICES=2 python mirrored_strategy.py      two GPUs; without GPUs, the CPU split in two
"""

import os
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from exercises.data import load_examples

EPOCHS, BATCH_SIZE, LEARNING_RATE, SEED = 5, 64, 0.05, 0


def make_strategy(num_devices: int) -> tf.distribute.MirroredStrategy:
    """A strategy over the first `num_devices` GPUs. Without GPUs, the CPU is split into as many logical devices."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices)
    # Gap 1: the strategy over the names of the first `num_devices` logical devices.
    ### BEGIN SOLUTION
    devices = tf.config.list_logical_devices("GPU" if gpus else "CPU")[:num_devices]
    return tf.distribute.MirroredStrategy([device.name for device in devices])
    ### END SOLUTION


def make_model(strategy: tf.distribute.Strategy, image_shape: tuple[int, ...]) -> tuple[keras.Model, keras.Optimizer]:
    """The model, and SGD with LEARNING_RATE and momentum 0.9. Each device has a copy of all their variables."""
    hidden, last = keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)
    layers = [keras.Input(image_shape), keras.layers.Flatten(), hidden, last]  # without variables yet
    # Gap 2: create both where variables are mirrored. The optimizer has no variables before it is built.
    ### BEGIN SOLUTION
    with strategy.scope():
        model = keras.Sequential(layers)
        optimizer = keras.optimizers.SGD(LEARNING_RATE, momentum=0.9)
        optimizer.build(model.trainable_variables)
    return model, optimizer
    ### END SOLUTION


def make_batches(
    strategy: tf.distribute.Strategy, images: np.ndarray, labels: np.ndarray, batch_size: int, shuffled: bool
) -> tf.distribute.DistributedDataset:
    """Distributed batches of `batch_size` examples (the last of fewer). The devices' shares differ by at most one."""
    examples = tf.data.Dataset.from_tensor_slices((images, labels))
    if shuffled:
        examples = examples.shuffle(len(labels), seed=SEED)
    # Gap 3: make batches, and distribute them. Does the strategy split batches, or combine them?
    ### BEGIN SOLUTION
    return strategy.experimental_distribute_dataset(examples.batch(batch_size))
    ### END SOLUTION


def make_train_step(
    strategy: tf.distribute.Strategy, model: keras.Model, optimizer: keras.Optimizer
) -> Callable[[tuple, int], tf.Tensor]:
    """A function that takes a distributed batch and the number of its examples, trains, and returns their mean loss."""

    def replica_step(images: tf.Tensor, labels: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        """Runs on each device, on its share of a batch of `count` examples (float32). The share may be empty."""
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(labels, model(images), from_logits=True)
            # Gap 4: from this replica's losses, compute its part of the mean over the whole batch. The optimizer adds
            # up the replicas' gradients.
            ### BEGIN SOLUTION
            loss = tf.reduce_sum(losses) / count
            ### END SOLUTION
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_step(batch: tuple, count: tf.Tensor) -> tf.Tensor:
        images, labels = batch
        replica_losses = strategy.run(replica_step, args=(images, labels, count))
        # Gap 5: combine the replicas' losses into one.
        ### BEGIN SOLUTION
        return strategy.reduce("SUM", replica_losses, axis=None)
        ### END SOLUTION

    return lambda batch, count: train_step(batch, tf.constant(count, tf.float32))


def evaluate(strategy: tf.distribute.Strategy, model: keras.Model, batches: tf.distribute.DistributedDataset) -> float:
    """The share of correct answers over all examples; the devices' shares of the last batch may differ in size."""

    @tf.function
    def count_correct(batch: tuple) -> tuple[tf.Tensor, tf.Tensor]:
        def replica_count(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            right = tf.argmax(model(images), axis=1) == labels
            return tf.reduce_sum(tf.cast(right, tf.int32)), tf.size(right)

        # Gap 6: run it on every device. Return the numbers of right answers and of examples, on all devices together.
        ### BEGIN SOLUTION
        correct, count = strategy.run(replica_count, args=batch)
        return strategy.reduce("SUM", correct, axis=None), strategy.reduce("SUM", count, axis=None)
        ### END SOLUTION

    totals = np.sum([[int(number) for number in count_correct(batch)] for batch in batches], axis=0)
    return float(totals[0] / totals[1])


def main() -> None:
    keras.utils.set_random_seed(SEED)
    strategy = make_strategy(int(os.environ.get("NUM_DEVICES", "1")))
    data = load_examples()
    model, optimizer = make_model(strategy, data.train_images.shape[1:])
    training = make_batches(strategy, data.train_images, data.train_labels, BATCH_SIZE, shuffled=True)
    testing = make_batches(strategy, data.test_images, data.test_labels, BATCH_SIZE, shuffled=False)
    train_step = make_train_step(strategy, model, optimizer)
    for epoch in range(EPOCHS):
        loss_sum, left = 0.0, len(data.train_labels)
        for batch in training:
            count = min(BATCH_SIZE, left)
            loss_sum += float(train_step(batch, count)) * count
            left -= count
        loss, accuracy = loss_sum / len(data.train_labels), evaluate(strategy, model, testing)
        replicas = strategy.num_replicas_in_sync
        print(f"epoch {epoch + 1}: {replicas} replica(s), mean loss {loss:.4f}, test accuracy {accuracy:.2%}")


if __name__ == "__main__":
    main()
