"""Training in TensorFlow; laid out like pt_impl/train.py and ptl_impl/train.py, to be read side by side."""

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.config import TrainConfig
from common.experiment import Experiment
from common.recorder import Recorder
from common.timeline import Timeline
from tf_impl.data import Batch, test_data, train_data
from tf_impl.devices import device_name, device_peak_memory_bytes, make_strategy, setup_devices
from tf_impl.model import activations, get_weights, load_weights, make_model, named_parameters, normalise, predict
from tf_impl.optimizer import make_optimizer

SUM = tf.distribute.ReduceOp.SUM

# --- Steps: each is traced once into a graph that runs on every replica ---


def loss_of(logits: tf.Tensor, labels: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """This replica's share of the global batch's mean cross-entropy: its sum, divided once by the global count."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return tf.reduce_sum(losses) / tf.cast(count, losses.dtype)


def make_train_step(
    experiment: Experiment, strategy: tf.distribute.Strategy, model: keras.Model, optimizer: keras.Optimizer, spec: Any
) -> Callable[[Batch], tuple[tf.Tensor, tf.Tensor]]:
    def replica_step(images: tf.Tensor, labels: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            logits = model(normalise(images, experiment.dataset, experiment.config.precision), training=True)
            loss = loss_of(logits, labels, count)
        gradients = tape.gradient(loss, model.trainable_variables)
        # The strategy sums the gradients over the replicas here.
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss, tf.math.count_nonzero(tf.argmax(logits, axis=1) == labels)

    @tf.function(input_signature=[spec])  # one graph for all sizes of batches and shards
    def train_step(batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        shares = strategy.run(replica_step, args=batch)
        return tuple(strategy.reduce(SUM, value, axis=None) for value in shares)

    return train_step


def make_eval_step(
    experiment: Experiment, strategy: tf.distribute.Strategy, model: keras.Model, spec: Any
) -> Callable[[Batch], tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
    def replica_step(images: tf.Tensor, labels: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        logits = model(normalise(images, experiment.dataset, experiment.config.precision), training=False)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        correct = tf.argmax(logits, axis=1) == labels
        return tf.reduce_sum(tf.cast(losses, tf.float64)), tf.math.count_nonzero(correct), tf.size(labels, tf.int64)

    @tf.function(input_signature=[spec])
    def eval_step(batch: Batch) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        sums = strategy.run(replica_step, args=batch)
        return tuple(strategy.reduce(SUM, value, axis=None) for value in sums)

    return eval_step


def evaluate(
    eval_step: Callable[[Batch], tuple[tf.Tensor, tf.Tensor, tf.Tensor]], data: Iterable[Batch]
) -> tuple[float, int, int]:
    """Sum of losses, correct answers and examples over the whole test set, each example once."""
    totals = [sum(values) for values in zip(*(eval_step(batch) for batch in data), strict=True)]
    loss_sum, correct, count = (value.numpy().item() for value in totals)
    return loss_sum, correct, count


# --- Loop ---


def train(experiment: Experiment, strategy: tf.distribute.Strategy, recorder: Recorder) -> Any:
    """Trains, evaluates after every epoch, and writes the run folder; returns the iterator, for `leave`."""
    config, plan = experiment.config, experiment.plan
    with strategy.scope():
        model = make_model(experiment.model, config.precision)
        load_weights(model, experiment.initial_weights)
        optimizer = make_optimizer(model, experiment.update_rule)
    training, testing = train_data(experiment, strategy), test_data(experiment, strategy)
    train_step = make_train_step(experiment, strategy, model, optimizer, training.element_spec)
    eval_step = make_eval_step(experiment, strategy, model, testing.element_spec)
    eval_step.get_concrete_function()  # traced now, as a part of start-up, and not in the first evaluation

    if config.save_first_batch:
        save_first_batch(experiment, strategy, model, next(iter(training)), recorder)

    batches = iter(training)
    for epoch in range(1, plan.num_epochs + 1):
        recorder.start_epoch()
        for _ in range(plan.steps_in_epoch(epoch)):
            recorder.step(*train_step(next(batches)))
        recorder.end_training()
        recorder.start_evaluation()
        recorder.end_epoch(*evaluate(eval_step, testing))
    if plan.num_epochs == 0:
        recorder.start_evaluation()
        recorder.end_epoch(*evaluate(eval_step, testing))

    recorder.save_predictions(predict(model, experiment.dataset, config.precision, config.eval_batch_size))
    recorder.finish(get_weights(model), ("tensorflow", "keras"), device_peak_memory_bytes(config))
    return batches


def fetch_steps(steps: list[tuple[tf.Tensor, tf.Tensor]]) -> list[tuple[float, float]]:
    """Global losses and correct answers of several steps, which the strategy has summed already."""
    losses, correct = (tf.stack(column).numpy().tolist() for column in zip(*steps, strict=True))
    return list(zip(losses, correct, strict=True))


def synchronize() -> None:
    """Waits for all devices."""
    tf.test.experimental.sync_devices()


# --- First batch: for comparing implementations layer by layer ---


def save_first_batch(
    experiment: Experiment, strategy: tf.distribute.Strategy, model: keras.Model, batch: Batch, recorder: Recorder
) -> None:
    """Writes every layer's output and every parameter's gradient on a batch, before any step."""
    layers = activations(model)

    def replica_step(images: tf.Tensor, labels: tf.Tensor, count: tf.Tensor) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            outputs = layers(normalise(images, experiment.dataset, experiment.config.precision))
            loss = loss_of(outputs[model.layers[-1].name], labels, count)
        return outputs, tape.gradient(loss, model.trainable_variables)

    outputs, gradients = strategy.run(tf.function(replica_step), args=batch)

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
        iterator = train(experiment, strategy, recorder)
    leave(iterator)


def leave(iterator: Any) -> None:
    """Ends this process at once: all is written, and destroying an iterator waits for its threads, for seconds."""
    sys.stdout.flush()
    os._exit(0)
