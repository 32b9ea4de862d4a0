"""Keras's loops; see benchmarks.loops. TensorFlow's bare loop is the limit of both."""

import time
from typing import Any

import keras

from benchmarks.loops import tf
from benchmarks.within_a_run import Loop, in_a_thread
from common.experiment import Experiment
from tf_impl.networks import make_network

make_limit = in_a_thread(tf.make_limit)


class Clock(keras.callbacks.Callback):
    def on_epoch_begin(self, *args: Any) -> None:
        self.start = time.perf_counter()

    def on_epoch_end(self, *args: Any) -> None:
        self.seconds = time.perf_counter() - self.start


@in_a_thread
def make_usual(experiment: Experiment) -> Loop:
    """Arrays of floats, `model.compile`, `model.fit`."""
    config, dataset = experiment.config, experiment.dataset
    images, labels = dataset.train_images.astype("float32") / 255, dataset.train_labels
    model, clock = make_network(experiment.network, config), Clock()
    model.compile(
        optimizer=keras.optimizers.SGD(config.learning_rate, momentum=config.momentum),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

    def loop(steps: int) -> float:
        model.fit(images, labels, batch_size=config.batch_size, callbacks=[clock])
        return clock.seconds

    return loop
