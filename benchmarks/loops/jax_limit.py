"""JAX's limit: a bare loop in turns with jax_impl's; see benchmarks.within_a_run.

The bare loop calls a compiled function that takes apart no modules and gets the arrays of the last step back. It is as
fast as JAX can be with one step in a call, for either mode: pooling and XLA's options are those of mode tuned.
"""

import time

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from benchmarks.within_a_run import BareLoop, train_beside
from common.experiment import Experiment
from jax_impl.backend import BACKEND
from jax_impl.data import TrainBatches
from jax_impl.networks import make_network
from jax_impl.parallel import batch_sharding, weight_sharding
from jax_impl.tuning import compiler_options, max_pool
from jax_impl.weights import load_weights, place


def make_bare(experiment: Experiment) -> BareLoop:
    """A loop of the training step on one batch, in memory as the network's input; each step is a compiled call."""
    config, mesh = experiment.config, BACKEND.mesh
    network = make_network(experiment.network, config, max_pool)
    load_weights(network, experiment.initial_weights)
    place(network, weight_sharding(config, mesh))
    inputs, labels, _ = next(TrainBatches(experiment, batch_sharding(mesh)).epoch(0))
    graph, parameters, others = nnx.split(network, nnx.Param, ...)
    optimizer = optax.sgd(1e-3, momentum=config.momentum)

    def loss_of(parameters: nnx.State, others: nnx.State) -> jax.Array:
        logits = nnx.merge(graph, parameters, others)(inputs, jnp.ones(len(labels), bool), training=True)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def train_step(parameters: nnx.State, slots: optax.OptState, others: nnx.State) -> tuple[nnx.State, optax.OptState]:
        gradients = jax.grad(loss_of)(parameters, others)
        updates, slots = optimizer.update(gradients, slots, parameters)
        return optax.apply_updates(parameters, updates), slots

    step = jax.jit(train_step, donate_argnums=(0, 1), compiler_options=compiler_options(config))
    state = parameters, optimizer.init(parameters)

    def loop(steps: int) -> float:
        nonlocal state
        jax.block_until_ready(state)
        start = time.perf_counter()
        for _ in range(steps):
            state = step(*state, others)
        jax.block_until_ready(state)
        return time.perf_counter() - start

    return loop


if __name__ == "__main__":
    train_beside(make_bare, BACKEND, "benchmarks.loops.jax_limit")
