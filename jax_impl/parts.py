"""The parts of a training in JAX. Mode, strategy and resuming are decided here, before `train`."""

import functools

import jax
from flax import nnx

from common.experiment import Experiment
from common.record.recorder import Recorder
from common.spec.update_rule import LossScaling
from jax_impl.data import Batches
from jax_impl.inspection import save_first_batch
from jax_impl.networks import make_losses, make_network
from jax_impl.optimizer import make_optimizer
from jax_impl.parallel import batch_sharding, weight_sharding
from jax_impl.precision import LossScale
from jax_impl.state import get_state, set_state
from jax_impl.train import Parts, eval_step, make_loop, train_step
from jax_impl.weights import load_weights, place_module


def make_parts(experiment: Experiment, mesh: jax.sharding.Mesh, recorder: Recorder) -> Parts:
    """The parts of this process. Every process must call it."""
    config = experiment.config
    max_pool = None
    if config.mode == "tuned":
        from jax_impl import tuning

        max_pool = tuning.max_pool
    network = make_network(experiment.network, config, max_pool)
    load_weights(network, experiment.first_weights)
    scale = LossScale(LossScaling()) if config.precision == "16-mixed" else None
    optimizer = make_optimizer(network, experiment.update_rule, scaled=scale is not None)
    if experiment.state:
        set_state(experiment, optimizer, scale)
    for part in (network, optimizer, scale):
        if part is not None:
            place_module(part, weight_sharding(config, mesh))

    sharding = batch_sharding(mesh)
    state_after = functools.partial(get_state, experiment, network, optimizer, scale)
    step = functools.partial(train_step, make_losses(experiment.network, config.label_smoothing))
    scores = functools.partial(eval_step, make_losses(experiment.network))
    if config.mode == "tuned":
        tuned = tuning.TunedLoop(experiment, sharding, (step, scores), (network, optimizer, scale), recorder)
        train_steps, evaluate = tuned.train_steps, tuned.evaluate
        state_after = functools.partial(tuned.state_after, state_after)
    else:
        kind = Batches
        if config.mode == "tutorial":
            from jax_impl import tutorial

            kind = tutorial.ImageByImage
        train_batches, test_batches = (kind(experiment, sharding, trains) for trains in (True, False))
        take_step = functools.partial(nnx.jit(step), network, optimizer, scale)
        evaluate_batch = functools.partial(nnx.jit(scores), network)
        train_steps, evaluate = make_loop(experiment, train_batches, test_batches, take_step, evaluate_batch)
    if config.save_first_batch:
        save_first_batch(experiment, network, sharding, recorder)

    return Parts(mesh, network, scale, train_steps, evaluate, state_after)
