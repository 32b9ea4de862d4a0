"""Training in Keras; laid out like the train.py of the other implementations, to be read side by side."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from common.experiment import Experiment
from common.record.recorder import Recorder
from common.spec.state import TrainState
from keras_impl.data import WeightedBatch, weighted_signature
from keras_impl.tutorial import make_loss
from tf_impl.data import Shards
from tf_impl.inspection import predict
from tf_impl.networks import DTYPES, make_losses
from tf_impl.optimizer import Optimizer
from tf_impl.replicas import device_peak_memory_bytes, share_statistics
from tf_impl.weights import get_weights

SUM = tf.distribute.ReduceOp.SUM


@dataclass(frozen=True)
class Parts:
    """What is trained and evaluated; made by `make_parts` (keras_impl/parts.py) for each mode.

    Attributes:
      network: the network that is trained.
      model: the network with its steps, not compiled yet.
      compile_options, fit_options: more options for `model.compile` and `model.fit`.
      train_batches: first epoch, counted from 0 -> a dataset for that epoch and the following ones.
      recording: the callback that reports to the recorder.
    """

    strategy: tf.distribute.Strategy
    network: keras.Model
    optimizer: Optimizer
    model: keras.Model
    compile_options: dict[str, Any]
    fit_options: dict[str, Any]
    train_batches: Callable[[int], tf.data.Dataset]
    test_batches: tf.data.Dataset
    recording: "Recording"


# --- Steps: each runs on every replica, on its shard of the batch ---


class Classifier(keras.Model):
    """The network with its steps, which fit calls. A batch has inputs, labels, and a weight for each example."""

    def __init__(self, network: keras.Model, experiment: Experiment) -> None:
        # Only the layers follow the policy of mixed precision: inputs, logits and losses keep their dtype.
        super().__init__(dtype=DTYPES[experiment.config.precision])
        self.network = network
        # The sum of losses, each weighted by its share of the global batch, instead of the shard's mean.
        self.loss_fn = make_loss(experiment, "sum")
        self.smoothing, self.losses_of = experiment.config.label_smoothing, make_losses(experiment.network)
        if experiment.config.compile:
            # Used instead of compile(jit_compile=True), which would make one program of all replicas and their
            # communication.
            signature = weighted_signature(experiment)
            self.forward_backward = tf.function(self.forward_backward, jit_compile=True, input_signature=signature)

    def compile(self, **options: Any) -> None:
        super().compile(**options)
        # Made here, in the strategy's scope, so that every replica has their variables.
        self.loss_sum, self.correct, self.count = (
            keras.metrics.Sum(name, dtype="float64") for name in ("loss_sum", "correct", "count")
        )

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """The metrics of the evaluation. Keras sets them to zero before each evaluation."""
        return [self.loss_sum, self.correct, self.count]

    def call(self, inputs: Any, training: bool = False) -> tf.Tensor:
        # With mixed precision the network computes in 16 bits, the loss in the 32 bits of the weights.
        return tf.cast(self.network(inputs, training=training), self.network.variable_dtype)

    def forward_backward(
        self, inputs: Any, labels: tf.Tensor, weights: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]:
        """This replica's shares of the global loss, of its gradients (scaled in float16) and of the correct answers."""
        with tf.GradientTape() as tape:
            logits = self(inputs, training=True)
            targets = tf.one_hot(labels, logits.shape[1], dtype=logits.dtype) if self.smoothing else labels
            loss = self.loss_fn(targets, logits, sample_weight=weights)
            scaled_loss = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled_loss, self.network.trainable_variables)
        return loss, gradients, tf.math.count_nonzero(tf.argmax(logits, axis=1) == labels)

    def train_step(self, data: WeightedBatch) -> dict[str, tf.Tensor]:
        loss, gradients, correct = self.forward_backward(*data)
        # The optimizer takes the sum of the replicas' gradients, instead of their average as in PyTorch.
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_variables, strict=True))
        # fit gives callbacks the mean over the replicas. Here all replicas have the same sum, which is also their mean.
        return tf.distribute.get_replica_context().all_reduce(SUM, {"loss": loss, "correct": correct})

    def test_step(self, data: WeightedBatch) -> dict[str, tf.Tensor]:
        inputs, labels, _ = data
        logits = self(inputs)
        # Sums in 64 bits, which weight all examples equally, instead of keras.metrics.Mean in 32 bits.
        self.loss_sum.update_state(self.losses_of(labels, logits))
        self.correct.update_state(tf.argmax(logits, axis=1) == labels)
        self.count.update_state(tf.ones_like(labels))
        return {metric.name: metric.result() for metric in self.metrics}


class Recording(keras.callbacks.Callback):
    """Reports to the recorder what the written-out loops of the other implementations report."""

    def __init__(
        self, recorder: Recorder, network: keras.Model, batches: Shards, get_state: Callable[[int], TrainState]
    ) -> None:
        """`batches`: the training shards, told each epoch; `get_state`: number of steps -> the state after them."""
        super().__init__()
        self.recorder, self.network, self.batches, self.get_state = recorder, network, batches, get_state

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch
        self.batches.set_epoch(epoch)
        self.recorder.start_epoch()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.record_steps(logs)
        self.recorder.offer_state(self.get_state)
        # After the last step of the epoch, which the plan counts from 1.
        if self.recorder.steps_done == self.recorder.plan.last_step(self.epoch + 1):
            self.recorder.end_training()
            # --max-steps may end the last epoch early.
            self.model.stop_training = self.recorder.steps_done == self.recorder.plan.total_steps

    def record_steps(self, logs: Any) -> None:
        """In tuned mode a call takes several steps."""
        self.recorder.step(logs["loss"], logs["correct"])

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.recorder.offer_state(self.get_state)

    def on_test_begin(self, logs: Any = None) -> None:
        self.recorder.start_evaluation()
        # All replicas use the first replica's running statistics, instead of their own.
        share_statistics(self.network, self.model.distribute_strategy)

    def on_test_end(self, logs: Any = None) -> None:
        self.recorder.end_epoch(float(logs["loss_sum"]), int(logs["correct"]), int(logs["count"]))


# --- Loop: fit, which calls the methods above ---


def train(experiment: Experiment, parts: Parts, recorder: Recorder) -> None:
    """Trains, evaluates after every epoch, and writes the run folder."""
    plan, strategy, network, optimizer = experiment.plan, parts.strategy, parts.network, parts.optimizer
    with strategy.scope():
        # auto_scale_loss=False: the optimizer scales the loss by its own rule.
        parts.model.compile(optimizer=optimizer, auto_scale_loss=False, **parts.compile_options)
        # One call, unless training resumes within an epoch: all epochs of a call have the same number of batches.
        for epochs in plan.epochs_alike:
            parts.model.fit(
                parts.train_batches(epochs.start),
                initial_epoch=epochs.start,
                epochs=epochs.stop,
                validation_data=parts.test_batches,
                shuffle=False,  # instead of Keras's shuffling: the batches are shuffled already
                callbacks=[parts.recording],
                **parts.fit_options,
            )

    memory, skipped = device_peak_memory_bytes(experiment.config, strategy), optimizer.skipped_steps
    recorder.save_predictions(predict(experiment, network))
    weights = get_weights(network)
    recorder.finish(weights, packages=("tensorflow", "keras"), peak_memory=memory, skipped_steps=skipped)
