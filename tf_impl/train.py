"""Training in TensorFlow; laid out like the train.py of the other implementations, to be read side by side."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from common.experiment import Experiment
from common.record.recorder import Recorder
from common.spec.batches import summed
from common.spec.state import TrainState
from tf_impl.data import Shard, Shards
from tf_impl.inspection import predict
from tf_impl.networks import Losses
from tf_impl.optimizer import GradientAccumulator, Optimizer
from tf_impl.replicas import device_peak_memory_bytes, share_statistics
from tf_impl.weights import get_weights

SUM = tf.distribute.ReduceOp.SUM
ForwardBackward = Callable[[Any, tf.Tensor, tf.Tensor], tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]]
Batches = tf.distribute.DistributedDataset
Shares = tuple[tf.Tensor, tf.Tensor]  # of the loss and of the number of correct answers; or their sums
# The steps that a replica takes: training, the update (None if training makes it), evaluation.
ReplicaSteps = tuple[Callable[..., Shares], Callable[[], None] | None, Callable[..., tuple[tf.Tensor, ...]]]


@dataclass(frozen=True)
class Parts:
    """What is trained and evaluated; made by `make_parts` (tf_impl/parts.py) for each mode and strategy.

    Attributes:
      network: the network that is trained.
      optimizer: a Keras optimizer that also scales the loss, if that is asked for.
      train_steps, evaluate: functions that `make_loop` returns, or tuned ones.
      get_state: number of steps -> the state after them.
    """

    strategy: tf.distribute.Strategy
    network: keras.Model
    optimizer: Optimizer
    train_steps: Callable[[int], Iterator[tuple[Any, ...]]]
    evaluate: Callable[[], tuple[float, int, int]]
    get_state: Callable[[int], TrainState]


# --- Steps: each runs on every replica, on its shard of the batch ---


def forward_backward(
    network: keras.Model,
    optimizer: Optimizer,
    losses_of: Losses,
    inputs: Any,
    labels: tf.Tensor,
    count: tf.Tensor | None = None,
) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]:
    """This replica's shares of the global loss, of its gradients (scaled in float16) and of the correct answers."""
    with tf.GradientTape() as tape:
        # With mixed precision the network computes in 16 bits, the loss in the 32 bits of the weights.
        logits = tf.cast(network(inputs, training=True), network.variable_dtype)
        # The sum over this shard, divided once by the size of the global batch, instead of the shard's mean.
        # Without that size, TensorFlow takes the shard's mean, divided by the number of replicas.
        loss = tf.nn.compute_average_loss(losses_of(labels, logits), global_batch_size=count)
        scaled_loss = optimizer.scale_loss(loss)
    gradients = tape.gradient(scaled_loss, network.trainable_variables)
    return loss, gradients, tf.math.count_nonzero(tf.argmax(logits, axis=1) == labels)


def train_step(network: keras.Model, optimizer: Optimizer, compute: ForwardBackward, *shard: tf.Tensor) -> Shares:
    """This replica's shares of the global loss and of the number of correct answers.

    Args:
      compute: `forward_backward` of this network, which may be compiled.
      shard: inputs, labels and count of a `Batch`; the last may be missing.
    """
    loss, gradients, correct = compute(*shard)
    # The optimizer takes the sum of the replicas' gradients, instead of their average as in PyTorch. It also unscales
    # and clips them, and takes the step's learning rate (optimizer.py); PyTorch's train_step does so itself.
    optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))
    return loss, correct


def accumulate_step(accumulator: GradientAccumulator, compute: ForwardBackward, *shard: tf.Tensor) -> Shares:
    """The same shares as `train_step`; the gradients are only added up."""
    loss, gradients, correct = compute(*shard)
    accumulator.add(gradients)
    return loss, correct


def update_step(network: keras.Model, optimizer: Optimizer, accumulator: GradientAccumulator) -> None:
    """The update of a step. Replicas add up their gradients here, not with each batch."""
    optimizer.apply_gradients(zip(accumulator.take(), network.trainable_variables, strict=True))


def eval_step(
    model: Any, losses_of: Losses, inputs: Any, labels: tf.Tensor, *_: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """This replica's sum of losses, number of correct answers and number of examples."""
    logits = tf.cast(model(inputs, training=False), model.variable_dtype)
    losses = losses_of(labels, logits)
    correct = tf.math.count_nonzero(tf.argmax(logits, axis=1) == labels)
    return tf.reduce_sum(tf.cast(losses, tf.float64)), correct, tf.size(labels, tf.int64)


# --- Loop ---


def make_loop(
    experiment: Experiment,
    strategy: tf.distribute.Strategy,
    train_shards: Shards,
    batches: tuple[Batches, Batches],
    steps: ReplicaSteps,
) -> tuple[Callable[[int], Iterator[Shares]], Callable[[], tuple[float, int, int]]]:
    """`train_steps` and `evaluate`, which call the steps on all replicas.

    Args:
      train_shards: which examples of each batch a replica gets; told each epoch.
      batches: of the training set and of the test set, distributed over the replicas.
      steps: the functions above, for this network.
    """
    train_batches, test_batches = batches
    replica_train_step, replica_update_step, replica_eval_step = steps

    # The signature allows any number of examples, so the last batch of an epoch needs no trace of its own.
    @tf.function(input_signature=[train_batches.element_spec])
    def distributed_train_step(shard: Shard) -> Shares:
        loss, correct = strategy.run(replica_train_step, args=shard)
        return strategy.reduce(SUM, loss, axis=None), strategy.reduce(SUM, correct, axis=None)

    @tf.function
    def distributed_update_step() -> None:
        strategy.run(replica_update_step)

    @tf.function(input_signature=[test_batches.element_spec])
    def distributed_eval_step(shard: Shard) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        sums = strategy.run(replica_eval_step, args=shard)
        return tuple(strategy.reduce(SUM, part, axis=None) for part in sums)

    def train_steps(epoch: int) -> Iterator[Shares]:
        """Takes the steps of an epoch, counted from 0; gives the global loss and number of correct answers of each."""
        train_shards.set_epoch(epoch)  # decides the order of the examples
        batches = iter(train_batches)
        # The plan counts epochs from 1. With --accumulate-grad-batches a step has several batches, and then its update.
        for step in experiment.plan.steps(epoch + 1):
            shares = [distributed_train_step(next(batches)) for _ in range(experiment.plan.batches_in(step))]
            if replica_update_step:
                distributed_update_step()
            yield summed(shares)

    def evaluate() -> tuple[float, int, int]:
        """Sum of losses, number of correct answers and of examples of the whole test set, each example once."""
        loss_sum, correct, count = 0.0, 0, 0
        for batch in test_batches:
            # Sums in 64 bits, which weight all examples equally, instead of the mean of the batches' means in 32 bits.
            sums = distributed_eval_step(batch)
            loss_sum, correct, count = loss_sum + sums[0], correct + sums[1], count + sums[2]
        return loss_sum.numpy().item(), correct.numpy().item(), count.numpy().item()

    return train_steps, evaluate


def train(experiment: Experiment, parts: Parts, recorder: Recorder) -> None:
    """Trains, evaluates after every epoch, and writes the run folder."""
    plan, strategy, network, optimizer = experiment.plan, parts.strategy, parts.network, parts.optimizer

    for epoch in range(plan.epochs_done, plan.num_epochs):
        recorder.start_epoch()
        for shares in parts.train_steps(epoch):
            recorder.step(*shares)
            recorder.offer_state(parts.get_state)
        recorder.end_training()
        recorder.start_evaluation()
        # All replicas use the first replica's running statistics, instead of their own.
        share_statistics(network, strategy)
        recorder.end_epoch(*parts.evaluate())
        recorder.offer_state(parts.get_state)

    memory, skipped = device_peak_memory_bytes(experiment.config, strategy), optimizer.skipped_steps
    recorder.save_predictions(predict(experiment, network))
    weights = get_weights(network)
    recorder.finish(weights, packages=("tensorflow", "keras"), peak_memory=memory, skipped_steps=skipped)
