"""MNIST in Keras as its tutorials train it: arrays of floats, `model.compile`, `model.fit`."""

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras

from benchmarks.loops.timed import TimedSteps
from common.experiment import Experiment
from common.platform.cli import parse_options
from common.platform.ending import as_program
from common.spec.options import TrainConfig
from tf_impl.backend import BACKEND
from tf_impl.networks import make_network
from tf_impl.parallel import make_strategy


class Clock(keras.callbacks.Callback):
    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self.timed = TimedSteps(config)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.timed.step()


def main() -> None:
    config = BACKEND.resolve(
        parse_options(TrainConfig, "python -m benchmarks.loops.keras_usual", "Keras as in tutorials.")
    )
    make_strategy(config)  # sets the number of threads
    dataset = Experiment.make(config).dataset
    count = config.max_steps * config.batch_size
    images = dataset.train_images[:count].astype("float32") / 255
    model = make_network(Experiment.make(config).network, config)
    model.compile(
        optimizer=keras.optimizers.SGD(config.learning_rate, momentum=config.momentum),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    labels, clock = dataset.train_labels[:count], Clock(config)
    model.fit(images, labels, batch_size=config.batch_size, epochs=1, callbacks=[clock])


if __name__ == "__main__":
    with as_program("keras_usual"):
        main()
