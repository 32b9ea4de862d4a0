"""Dropout and augmentation in TensorFlow, in lockstep and with its own layers; see benchmarks.draws."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf

from benchmarks.loops.timed import milliseconds
from benchmarks.paired import write_speed
from common.experiment import Experiment
from common.platform.cli import parse_options
from common.platform.program import as_program
from common.spec.options import TrainConfig
from common.spec.randomness import visits
from tf_impl.data import make_shards
from tf_impl.networks import Dropout
from tf_impl.parallel import make_strategy
from tf_impl.replicas import setup_devices


def main(config: TrainConfig) -> None:
    config = setup_devices(config)
    make_strategy(config)
    experiment = Experiment.make(config)
    dataset, size, pad = experiment.dataset, config.batch_size, config.random_crop
    images = tf.constant(dataset.train_images[:size])
    positions = tf.range(size, dtype=tf.int64)
    seen = visits(1, positions)
    values, dropout = tf.random.normal([size, 12, 12, 64]), Dropout(0.25, config.seed, 0)
    own_dropout, shards = keras.layers.Dropout(0.25), make_shards(experiment, 1)[0]

    def own(image: tf.Tensor) -> tf.Tensor:
        image = tf.image.random_crop(tf.pad(image, [[pad, pad], [pad, pad], [0, 0]]), [32, 32, 3])
        return (tf.cast(tf.image.random_flip_left_right(image), tf.float32) / 255 - 0.5) / 0.25

    # The usual way to write it: one image at a time, in a pipeline's threads.
    pipeline = tf.data.Dataset.from_tensor_slices(images).map(own, tf.data.AUTOTUNE).batch(size).repeat()
    batches = iter(pipeline)
    found = milliseconds(
        {
            "dropout": tf.function(lambda: dropout(values, seen, training=True)),
            "own_dropout": tf.function(lambda: own_dropout(values, training=True)),
            "augmentation": tf.function(lambda: shards.prepare(images, seen)),
            "own_augmentation": lambda: next(batches),
        }
    )
    write_speed(config.run_dir, **found)


if __name__ == "__main__":
    with as_program("tf_draws"):
        main(parse_options(TrainConfig, "python -m benchmarks.loops.tf_draws", "TensorFlow's draws."))
