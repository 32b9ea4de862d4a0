"""The parts of a training in TensorFlow. Mode, strategy and resuming are decided here, before `train`."""

import functools
from contextlib import nullcontext

import tensorflow as tf

from common.experiment import Experiment
from common.record.recorder import Recorder
from tf_impl.data import batch_signature, make_dataset, make_shards
from tf_impl.inspection import save_first_batch
from tf_impl.networks import make_losses, make_network
from tf_impl.optimizer import GradientAccumulator, make_optimizer
from tf_impl.replicas import sum_over_replicas
from tf_impl.state import get_state, set_state
from tf_impl.train import Parts, accumulate_step, eval_step, forward_backward, make_loop, train_step, update_step
from tf_impl.weights import load_weights


def make_parts(experiment: Experiment, strategy: tf.distribute.Strategy, recorder: Recorder) -> Parts:
    """The parts of this process. Every process must call it."""
    config, placed = experiment.config, nullcontext()
    if config.strategy == "pipeline":
        from tf_impl import pipeline

        placed = pipeline.layers_placed(experiment.network, config)
    with strategy.scope(), placed:
        network = make_network(experiment.network, config, sum_over_replicas)
        load_weights(network, experiment.first_weights)
        optimizer = make_optimizer(network, experiment.update_rule, config)
        accumulator = GradientAccumulator(network.trainable_variables) if config.accumulate_grad_batches > 1 else None
    if experiment.state:
        set_state(experiment, network, optimizer)
    shards = make_shards(experiment, strategy.num_replicas_in_sync)

    if config.strategy == "pipeline":
        model = pipeline.Stages(network, experiment.network, config)
        compute = functools.partial(model.forward_backward, optimizer)
    else:
        model = network
        losses_of = make_losses(experiment.network, config.label_smoothing)
        compute = functools.partial(forward_backward, network, optimizer, losses_of)
    if config.compile:
        signature = batch_signature(experiment)
        if config.mode == "tutorial":
            signature = signature[:2]  # its batches have no count
        compute = tf.function(compute, jit_compile=True, input_signature=signature)
    if accumulator:
        step = functools.partial(accumulate_step, accumulator, compute)
        update = functools.partial(update_step, network, optimizer, accumulator)
    else:
        step, update = functools.partial(train_step, network, optimizer, compute), None
    steps = step, update, functools.partial(eval_step, model, make_losses(experiment.network))

    if config.mode == "tuned":
        from tf_impl import tuning

        if config.compile:
            tuning.compile_ahead(experiment, strategy, shards[0], network, compute)
        tuned = tuning.TunedLoop(experiment, strategy, shards, steps, recorder)
        train_steps, evaluate = tuned.train_steps, tuned.evaluate
    else:
        if config.mode == "tutorial":
            from tf_impl import tutorial

            whole = map(tutorial.make_batches, shards)
            batches = tuple(map(strategy.experimental_distribute_dataset, whole))
        else:
            batches = tuple(make_dataset(strategy, of_set) for of_set in shards)
        train_steps, evaluate = make_loop(experiment, strategy, shards[0], batches, steps)
    if config.save_first_batch:
        save_first_batch(experiment, strategy, network, recorder)

    state_after = functools.partial(get_state, experiment, network, optimizer)
    return Parts(strategy, network, optimizer, train_steps, evaluate, state_after)
