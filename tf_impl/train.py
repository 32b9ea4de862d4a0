"""Training in TensorFlow; laid out like pt_impl/train.py and ptl_impl/train.py, to be read side by side."""

import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.config import TrainConfig
from common.errors import leave
from common.experiment import Experiment
from common.recorder import Recorder
from common.timeline import Timeline
from tf_impl.data import Data, black_shards, test_data, train_data
from tf_impl.devices import device_name, device_peak_memory_bytes, make_strategy, setup_devices
from tf_impl.model import (
    DTYPES,
    activations,
    forward,
    get_weights,
    load_weights,
    make_model,
    named_parameters,
    normalise,
    predict,
)
from tf_impl.optimizer import SGD, make_optimizer

SUM = tf.distribute.ReduceOp.SUM

# --- Steps: traced once into a graph that runs on every replica, several steps in one call ---


def loss_of(logits: tf.Tensor, labels: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """This replica's share of the global batch's mean cross-entropy: its sum, divided once by the global count."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return tf.reduce_sum(losses) / tf.cast(count, losses.dtype)


def make_train_steps(
    experiment: Experiment, strategy: tf.distribute.Strategy, model: keras.Model, optimizer: SGD, data: Data
) -> Callable[[Any, tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    dataset, precision = experiment.dataset, experiment.config.precision

    def forward_backward(images: tf.Tensor, labels: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, Any, tf.Tensor]:
        with tf.GradientTape() as tape:
            logits = forward(model, images, dataset, precision, training=True)
            loss = loss_of(logits, labels, count)
            scaled_loss = optimizer.loss_scale.scaled(loss)
        gradients = tape.gradient(scaled_loss, model.trainable_variables)
        return loss, gradients, tf.math.count_nonzero(tf.argmax(logits, axis=1) == labels)

    if experiment.config.compile and experiment.plan.total_steps:
        shape = experiment.model.image_shape
        inputs = tf.TensorSpec([None, *shape], tf.uint8), tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.int64)
        forward_backward = tf.function(forward_backward, jit_compile=True, input_signature=inputs)
        # For both sizes of shards, a whole batch's and the last one's, now, as a part of start-up.
        compile_ahead = tf.function(lambda *shards: strategy.run(lambda *shard: forward_backward(*shard), args=shards))
        for bounds in data.shards[[0, -1]]:
            compile_ahead(*black_shards(strategy, bounds, shape))

    def replica_step(*inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        loss, gradients, correct = forward_backward(*data.shard(*inputs))
        gradients = optimizer.loss_scale.unscaled(gradients)
        # The strategy sums the gradients over the replicas here.
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss, correct

    @tf.function
    def train_steps(epoch: Any, first: tf.Tensor, number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Global losses and correct answers, (number,) each, of an epoch's batches `first`, `first` + 1, ..."""
        losses, correct = tf.TensorArray(DTYPES[precision], number), tf.TensorArray(tf.int64, number)
        for step in tf.range(number):
            shares = strategy.run(replica_step, args=data.inputs(epoch, first + step))
            losses = losses.write(step, strategy.reduce(SUM, shares[0], axis=None))
            correct = correct.write(step, strategy.reduce(SUM, shares[1], axis=None))
        return losses.stack(), correct.stack()

    return train_steps


def make_eval_steps(
    experiment: Experiment, strategy: tf.distribute.Strategy, model: keras.Model, data: Data
) -> Callable[[Any, tf.Tensor], tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
    def replica_step(*inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        images, labels, _ = data.shard(*inputs)
        logits = forward(model, images, experiment.dataset, experiment.config.precision, training=False)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        correct = tf.argmax(logits, axis=1) == labels
        return tf.reduce_sum(tf.cast(losses, tf.float64)), tf.math.count_nonzero(correct), tf.size(labels, tf.int64)

    @tf.function
    def eval_steps(epoch: Any, number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Sum of losses, correct answers and examples over the whole test set, each example once."""
        loss_sum, correct, count = tf.constant(0.0, tf.float64), tf.constant(0, tf.int64), tf.constant(0, tf.int64)
        for batch in tf.range(number):
            shares = strategy.run(replica_step, args=data.inputs(epoch, batch))
            loss_sum += strategy.reduce(SUM, shares[0], axis=None)
            correct += strategy.reduce(SUM, shares[1], axis=None)
            count += strategy.reduce(SUM, shares[2], axis=None)
        return loss_sum, correct, count

    return eval_steps


def evaluate(
    eval_steps: Callable[[Any, tf.Tensor], tuple[tf.Tensor, tf.Tensor, tf.Tensor]], data: Data
) -> tuple[float, int, int]:
    """Sum of losses, correct answers and examples over the whole test set, each example once."""
    loss_sum, correct, count = eval_steps(data.epoch(1), tf.constant(data.num_batches))
    return loss_sum.numpy().item(), correct.numpy().item(), count.numpy().item()


# --- Loop ---


def train(experiment: Experiment, strategy: tf.distribute.Strategy, recorder: Recorder) -> Data:
    """Trains, evaluates after every epoch, and writes the run folder; returns the training data."""
    config, plan = experiment.config, experiment.plan
    with strategy.scope():
        model = make_model(experiment.model, config.precision)
        load_weights(model, experiment.initial_weights)
        optimizer = make_optimizer(model, experiment.update_rule, config)
    training, testing = train_data(experiment, strategy), test_data(experiment, strategy)
    train_steps = make_train_steps(experiment, strategy, model, optimizer, training)
    eval_steps = make_eval_steps(experiment, strategy, model, testing)
    # Traced now, as a part of start-up, and not in the first evaluation.
    eval_steps.get_concrete_function(testing.epoch(1), tf.constant(testing.num_batches))

    if config.save_first_batch:
        save_first_batch(experiment, strategy, model, training, recorder)

    for epoch in range(1, plan.num_epochs + 1):
        order = training.epoch(epoch)
        recorder.start_epoch()
        step = 0
        while step < plan.steps_in_epoch(epoch):
            number = recorder.steps_to_go()
            recorder.step(*train_steps(order, tf.constant(step), tf.constant(number)), number)
            step += number
        recorder.end_training()
        recorder.start_evaluation()
        recorder.end_epoch(*evaluate(eval_steps, testing))
    if plan.num_epochs == 0:
        recorder.start_evaluation()
        recorder.end_epoch(*evaluate(eval_steps, testing))

    recorder.save_predictions(predict(model, experiment.dataset, config.precision, config.eval_batch_size))
    memory, skipped = device_peak_memory_bytes(config), optimizer.loss_scale.skipped_steps
    recorder.finish(get_weights(model), ("tensorflow", "keras"), memory, skipped)
    return training


def fetch_steps(steps: list[tuple[tf.Tensor, tf.Tensor]]) -> list[tuple[float, float]]:
    """Global losses and correct answers of several steps, which the strategy has summed already."""
    losses, correct = (tf.concat(column, axis=0).numpy().tolist() for column in zip(*steps, strict=True))
    return list(zip(losses, correct, strict=True))


def synchronize() -> None:
    """Waits for all devices."""
    tf.test.experimental.sync_devices()


# --- First batch: for comparing implementations layer by layer ---


def save_first_batch(
    experiment: Experiment, strategy: tf.distribute.Strategy, model: keras.Model, data: Data, recorder: Recorder
) -> None:
    """Writes every layer's output and every parameter's gradient on a batch, before any step."""
    layers, precision = activations(model), experiment.config.precision

    def replica_step(*inputs: tf.Tensor) -> tuple[Any, Any]:
        images, labels, count = data.shard(*inputs)
        with tf.GradientTape() as tape:
            outputs = layers(normalise(images, experiment.dataset, precision))
            outputs = {name: tf.cast(output, DTYPES[precision]) for name, output in outputs.items()}
            loss = loss_of(outputs[model.layers[-1].name], labels, count)
        return outputs, tape.gradient(loss, model.trainable_variables)

    outputs, gradients = strategy.run(tf.function(replica_step), args=data.first())

    def joined(value: Any) -> NDArray[np.floating]:
        return np.concatenate([part.numpy() for part in strategy.experimental_local_results(value)])

    recorder.save_first_batch(
        {name: joined(value) for name, value in outputs.items()},
        {
            name: strategy.reduce(SUM, gradient, axis=None).numpy()
            for name, gradient in zip(named_parameters(model), gradients, strict=True)
        },
    )


# --- Start ---


def main(config: TrainConfig) -> None:
    """One run with one strategy; `config` as read from the command line."""
    timeline = Timeline.begin(os.getpid())
    timeline.enter("data")
    experiment = Experiment.make(setup_devices(config)).with_run_dir("tf")
    if config.dry_run:
        return
    timeline.enter("build")
    strategy = make_strategy(experiment.config)
    with Recorder(
        "tf",
        "TensorFlow",
        experiment,
        device_name=device_name(experiment.config),
        timeline=timeline,
        writes=True,
        fetch=fetch_steps,
        synchronize=synchronize,
    ) as recorder:
        data = train(experiment, strategy, recorder)
    assert data  # alive until here: an iterator that is destroyed waits for its threads, for seconds
    leave()
