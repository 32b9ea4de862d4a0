"""JAX's loops; see benchmarks.loops."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from PIL import Image

from benchmarks.within_a_run import Loop, timed
from common.experiment import Experiment
from jax_impl.backend import BACKEND
from jax_impl.data import Batches
from jax_impl.networks import Network, make_network
from jax_impl.parallel import batch_sharding, weight_sharding
from jax_impl.tuning import compiler_options, max_pool
from jax_impl.weights import load_weights, place_module


def make_limit(experiment: Experiment) -> Loop:
    """A compiled function, which takes apart no modules; pooling and XLA's options are those of mode tuned."""
    config, mesh = experiment.config, BACKEND.mesh
    network = make_network(experiment.network, config, max_pool)
    load_weights(network, experiment.initial_weights)
    place_module(network, weight_sharding(config, mesh))
    inputs, labels, _ = next(Batches(experiment, batch_sharding(mesh), trains=True).epoch())
    graph, parameters, others = nnx.split(network, nnx.Param, ...)
    optimizer = optax.sgd(1e-3, momentum=config.momentum)

    def loss_of(parameters: nnx.State, others: nnx.State) -> jax.Array:
        logits = nnx.merge(graph, parameters, others)(inputs, jnp.ones(len(labels), bool), training=True)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def train_step(parameters: nnx.State, slots: optax.OptState, others: nnx.State) -> tuple[nnx.State, optax.OptState]:
        updates, slots = optimizer.update(jax.grad(loss_of)(parameters, others), slots, parameters)
        return optax.apply_updates(parameters, updates), slots

    step = jax.jit(train_step, donate_argnums=(0, 1), compiler_options=compiler_options(config))
    state = parameters, optimizer.init(parameters)

    def take_step() -> None:
        nonlocal state
        state = step(*state, others)

    return timed(take_step, lambda: jax.block_until_ready(state))


@nnx.jit
def train_step(model: Network, optimizer: nnx.Optimizer[Network], images: jax.Array, labels: jax.Array) -> jax.Array:
    def loss_of(model: Network) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(model(images, training=True), labels).mean()

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


def make_usual(experiment: Experiment) -> Loop:
    """As in Flax's tutorial: images that are converted one by one and stacked, and a step compiled by nnx.jit."""
    config, dataset = experiment.config, experiment.dataset
    pictures = [Image.fromarray(image.squeeze(-1)) for image in dataset.train_images]
    model = make_network(experiment.network, config)
    load_weights(model, experiment.initial_weights)
    optimizer = nnx.Optimizer(model, optax.sgd(config.learning_rate, momentum=config.momentum), wrt=nnx.Param)

    def loop(steps: int) -> float:
        start = time.perf_counter()
        for chosen in np.random.permutation(len(pictures)).reshape(steps, -1):
            images = np.stack([np.array(pictures[index], dtype=np.float32)[..., None] / 255.0 for index in chosen])
            loss = train_step(model, optimizer, (images - 0.1307) / 0.3081, dataset.train_labels[chosen])
        print(f"loss {loss.item():.4f}")
        return time.perf_counter() - start

    return loop
