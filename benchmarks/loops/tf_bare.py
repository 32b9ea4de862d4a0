"""TensorFlow's bare loop: the training step over one batch in memory, on one device or under MirroredStrategy."""

import contextlib
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf

from benchmarks.paired import write_speed
from common.cli import parse_train_config
from common.errors import whole_program
from common.experiment import Experiment
from common.recorder import WARMUP_STEPS
from tf_impl.data import train_data
from tf_impl.devices import make_strategy, setup_devices
from tf_impl.model import load_weights, make_model, normalise
from tf_impl.train import synchronize

SUM = tf.distribute.ReduceOp.SUM


def main() -> None:
    config = setup_devices(parse_train_config("benchmarks.loops.tf_bare", "TensorFlow's bare loop."))
    strategy = make_strategy(config)
    experiment = Experiment.make(config)
    several = config.devices > 1
    with strategy.scope() if several else contextlib.nullcontext():
        model = make_model(experiment.model, config.precision)
        load_weights(model, experiment.initial_weights)
        optimizer = keras.optimizers.SGD(1e-3, momentum=config.momentum)
        optimizer.build(model.trainable_variables)

    data = train_data(experiment, strategy)

    def first_shard() -> tuple[tf.Tensor, tf.Tensor]:
        images, labels, _ = data.shard(*data.first())
        return normalise(images, experiment.dataset, config.precision), labels

    batch = strategy.run(first_shard)

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

    steps = experiment.plan.total_steps
    for step in range(steps):
        if step == WARMUP_STEPS:
            synchronize()
            start = time.perf_counter()
        train_step(*batch)
    synchronize()
    seconds = time.perf_counter() - start
    write_speed(config.run_dir, images_per_second=(steps - WARMUP_STEPS) * config.batch_size / seconds)


if __name__ == "__main__":
    with whole_program("tf_bare"):
        main()
