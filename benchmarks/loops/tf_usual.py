"""MNIST in TensorFlow as its tutorials train it: arrays of floats, `model.compile`, `model.fit`."""

import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras

from benchmarks.paired import write_speed
from common.experiment import Experiment
from common.platform.program import as_program
from common.record.recorder import WARMUP_STEPS
from common.spec.command_line import parse_train_config
from tf_impl.networks import make_network
from tf_impl.parallel import make_strategy
from tf_impl.replicas import setup_devices


class Clock(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == WARMUP_STEPS:
            self.start = time.perf_counter()


def main() -> None:
    config = setup_devices(parse_train_config("benchmarks.loops.tf_usual", "TensorFlow as in tutorials."))
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
    clock = Clock()
    model.fit(
        images, dataset.train_labels[:count], batch_size=config.batch_size, epochs=1, verbose=2, callbacks=[clock]
    )
    timed = (config.max_steps - WARMUP_STEPS) * config.batch_size
    write_speed(config.run_dir, images_per_second=timed / (time.perf_counter() - clock.start))


if __name__ == "__main__":
    with as_program("tf_usual"):
        main()
