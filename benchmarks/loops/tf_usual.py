"""MNIST in TensorFlow as its tutorials train it: arrays of floats, tf.data, a strategy, a written-out loop."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf

from benchmarks.loops.timed import TimedSteps
from common.experiment import Experiment
from common.platform.cli import parse_options
from common.platform.ending import as_program
from common.spec.options import TrainConfig
from tf_impl.backend import BACKEND
from tf_impl.networks import make_network
from tf_impl.parallel import make_strategy


def main() -> None:
    config = BACKEND.resolve(
        parse_options(TrainConfig, "python -m benchmarks.loops.tf_usual", "TensorFlow as in tutorials.")
    )
    strategy = make_strategy(config)
    experiment = Experiment.make(config)
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

    timed = TimedSteps(config)
    total_loss = 0.0
    for step, (images, labels) in enumerate(dataset):
        if step == config.max_steps:
            break
        total_loss += distributed_train_step(images, labels)
        timed.step()
    print(f"loss {float(total_loss) / config.max_steps:.4f}, accuracy {float(accuracy.result()):.4f}")


if __name__ == "__main__":
    with as_program("tf_usual"):
        main()
