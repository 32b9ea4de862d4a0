"""Training in TensorFlow; laid out like the train.py of the other implementations, to be read side by side."""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import keras
import tensorflow as tf

from common.experiment import Experiment
from common.record.recorder import Recorder
from common.spec.batches import summed
from tf_impl.data import Batch, Shard, make_dataset, make_shards, step_signature
from tf_impl.inspection import predict, save_first_batch
from tf_impl.networks import cross_entropy, make_network
from tf_impl.optimizer import Accumulator, Optimizer, averaged, make_optimizer
from tf_impl.replicas import device_peak_memory_bytes, share_statistics
from tf_impl.state import get_state, set_state
from tf_impl.weights import get_weights, load_weights

SUM = tf.distribute.ReduceOp.SUM
ForwardBackward = Callable[[Any, tf.Tensor, tf.Tensor], tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]]

# --- Steps: each runs on every replica, on its shard of the batch ---


def forward_backward(
    network: keras.Model,
    optimizer: Optimizer,
    smoothing: float,
    inputs: Any,
    labels: tf.Tensor,
    count: tf.Tensor,
) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]:
    """This replica's shares of the global loss, of its gradients (scaled in float16) and of the correct answers."""
    with tf.GradientTape() as tape:
        logits = tf.cast(network(inputs, training=True), network.variable_dtype)
        # The sum over this shard, divided once by the size of the global batch, instead of the shard's mean.
        losses = cross_entropy(labels, logits, smoothing)
        loss = tf.nn.compute_average_loss(losses, global_batch_size=count)
        scaled_loss = optimizer.scale_loss(loss)
    gradients = tape.gradient(scaled_loss, network.trainable_variables)
    return loss, gradients, tf.math.count_nonzero(tf.argmax(logits, axis=1) == labels)


def train_step(
    network: keras.Model, optimizer: Optimizer, compute: ForwardBackward, batch: Batch
) -> tuple[tf.Tensor, tf.Tensor]:
    """This replica's shares of the global loss and of the number of correct answers.

    Args:
      compute: `forward_backward` of this network, which may be compiled.
    """
    loss, gradients, correct = compute(*batch)
    # The optimizer takes the sum of the replicas' gradients, instead of their average as in PyTorch.
    optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))
    return loss, correct


def accumulate_step(accumulator: Accumulator, compute: ForwardBackward, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
    """The same shares as `train_step`; the gradients are only added up."""
    loss, gradients, correct = compute(*batch)
    accumulator.add(gradients)
    return loss, correct


def update_step(network: keras.Model, optimizer: Optimizer, accumulator: Accumulator) -> None:
    """The update of a step. Replicas add up their gradients here, not with each batch."""
    optimizer.apply_gradients(zip(accumulator.take(), network.trainable_variables, strict=True))


def eval_step(model: Any, batch: Batch) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """This replica's sum of losses, number of correct answers and number of examples."""
    inputs, labels, _ = batch
    logits = tf.cast(model(inputs, training=False), model.variable_dtype)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    correct = tf.math.count_nonzero(tf.argmax(logits, axis=1) == labels)
    return tf.reduce_sum(tf.cast(losses, tf.float64)), correct, tf.size(labels, tf.int64)


# --- Loop ---


def train(experiment: Experiment, strategy: tf.distribute.Strategy, recorder: Recorder) -> None:
    """Trains, evaluates after every epoch, and writes the run folder."""
    config, plan = experiment.config, experiment.plan
    placed = nullcontext()
    if config.strategy == "pipeline":
        from tf_impl import pipeline

        placed = pipeline.placed(experiment.network, config)
    with strategy.scope(), placed:
        network = make_network(experiment.network, config)
        load_weights(network, experiment.first_weights)
        optimizer = make_optimizer(network, experiment.update_rule, config)
        accumulator = Accumulator(network.trainable_variables) if config.accumulate_grad_batches > 1 else None
    if experiment.state:
        set_state(experiment, network, optimizer)
    train_shards, test_shards = make_shards(experiment, strategy.num_replicas_in_sync)
    train_dataset, test_dataset = (make_dataset(strategy, one) for one in (train_shards, test_shards))

    compute = functools.partial(forward_backward, network, optimizer, config.label_smoothing)
    model = network
    if config.strategy == "pipeline":
        model = pipeline.Stages(network, experiment.network, config)
        compute = functools.partial(model.forward_backward, optimizer)
    if config.compile:
        compute = tf.function(compute, jit_compile=True, input_signature=step_signature(experiment))

    def replica_train_step(*shard: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        if accumulator:
            return accumulate_step(accumulator, compute, Batch(*shard))
        return train_step(network, optimizer, compute, Batch(*shard))

    def replica_update_step() -> None:
        update_step(network, optimizer, accumulator)

    def replica_eval_step(*shard: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        return eval_step(model, Batch(*shard))

    # The signature allows any number of examples, so the last batch of an epoch needs no trace of its own.
    @tf.function(input_signature=[train_dataset.element_spec])
    def distributed_train_step(shard: Shard) -> tuple[tf.Tensor, tf.Tensor]:
        loss, correct = strategy.run(replica_train_step, args=shard)
        return strategy.reduce(SUM, loss, axis=None), strategy.reduce(SUM, correct, axis=None)

    @tf.function
    def distributed_update_step() -> None:
        strategy.run(replica_update_step)

    @tf.function(input_signature=[test_dataset.element_spec])
    def distributed_eval_step(shard: Shard) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        sums = strategy.run(replica_eval_step, args=shard)
        return tuple(strategy.reduce(SUM, one, axis=None) for one in sums)

    def checkpoint() -> None:
        if recorder.checkpoint_due:
            recorder.save_checkpoint(get_state(experiment, network, optimizer, recorder.steps_done))

    def train_epoch(epoch: int) -> None:
        train_shards.set_epoch(epoch)
        batches = iter(train_dataset)
        for step in plan.steps(epoch + 1):
            shares = [distributed_train_step(next(batches)) for _ in range(plan.batches_in(step))]
            if accumulator:
                distributed_update_step()
            recorder.step(*summed(shares))
            checkpoint()

    def evaluate() -> None:
        """Evaluates the whole test set, each example once."""
        recorder.start_evaluation()
        loss_sum, correct, count = 0.0, 0, 0
        for batch in test_dataset:
            # Sums in 64 bits, which weight all examples equally, instead of the mean of the batches' means in 32 bits.
            sums = distributed_eval_step(batch)
            loss_sum, correct, count = loss_sum + sums[0], correct + sums[1], count + sums[2]
        recorder.end_epoch(loss_sum.numpy().item(), correct.numpy().item(), count.numpy().item())

    if config.mode == "tuned":
        from tf_impl import tuning

        shards = train_shards, test_shards
        if config.compile:
            tuning.compile_ahead(experiment, strategy, train_shards, network, compute)
        steps = replica_train_step, replica_update_step, replica_eval_step
        tuned = tuning.TunedLoop(experiment, strategy, shards, steps, recorder, checkpoint)
        train_epoch, evaluate = tuned.train_epoch, tuned.evaluate
    if config.save_first_batch:
        save_first_batch(experiment, strategy, network, next(iter(train_dataset)), recorder)

    for epoch in range(plan.epochs_before, plan.num_epochs):
        recorder.start_epoch()
        train_epoch(epoch)
        recorder.end_training()
        # All replicas use the first replica's running statistics, instead of their own.
        share_statistics(network, strategy)
        with averaged(network, optimizer):
            evaluate()
        checkpoint()

    memory, skipped = device_peak_memory_bytes(config, strategy), optimizer.skipped_steps
    with averaged(network, optimizer):
        recorder.save_predictions(predict(experiment, network))
        recorder.finish(get_weights(network), ("tensorflow", "keras"), memory, skipped)
