"""MNIST in JAX as Flax's tutorial trains it: images converted one by one and stacked, a step compiled by nnx.jit."""

from collections.abc import Iterator

import jax
import numpy as np
import optax
from flax import nnx
from numpy.typing import NDArray
from PIL import Image

from benchmarks.loops.timed import TimedSteps
from common.data.datasets import load_dataset
from common.platform.cli import parse_options
from common.platform.ending import as_program
from common.spec.networks import NetworkSpec
from common.spec.options import TrainConfig
from jax_impl.backend import BACKEND
from jax_impl.networks import Network, make_network
from jax_impl.replicas import setup_process
from jax_impl.weights import load_weights

Arrays = NDArray[np.floating]


def make_batches(config: TrainConfig) -> Iterator[tuple[Arrays, NDArray[np.int64]]]:
    """Normalised images (n, 28, 28, 1) and labels (n,). An incomplete last batch is left out."""
    dataset = load_dataset(config)
    pictures = [Image.fromarray(image.squeeze(-1)) for image in dataset.train_images]
    mean, deviation = dataset.shift.item() / 255, 1 / (dataset.scale.item() * 255)
    order, size = np.random.default_rng(0).permutation(len(pictures)), config.batch_size
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        images = [np.array(pictures[index], dtype=np.float32)[..., None] / 255.0 for index in chosen]
        yield (np.stack(images) - np.float32(mean)) / np.float32(deviation), np.array(dataset.train_labels[chosen])


@nnx.jit
def train_step(model: Network, optimizer: nnx.Optimizer[Network], images: jax.Array, labels: jax.Array) -> jax.Array:
    def loss_of(model: Network) -> jax.Array:
        logits = model(images, training=True)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


def main() -> None:
    config = BACKEND.resolve(parse_options(TrainConfig, "python -m benchmarks.loops.jax_usual", "JAX as in tutorials."))
    setup_process(config)
    spec = NetworkSpec.make(config.model, (28, 28, 1), 10)
    model = make_network(spec, config)
    load_weights(model, spec.initial_weights(seed=0))
    optimizer = nnx.Optimizer(model, optax.sgd(config.learning_rate, momentum=config.momentum), wrt=nnx.Param)

    timed = TimedSteps(config)
    for step, (images, labels) in enumerate(make_batches(config)):
        if step == config.max_steps:
            break
        loss = train_step(model, optimizer, images, labels)
        if step % config.log_every_n_steps == 0:
            print(f"step {step}: loss {loss.item():.4f}")
        if timed.done + 1 in (1, timed.turn.timed_after, timed.turn.until):
            jax.block_until_ready(loss)  # the clock is read after this step
        timed.step()


if __name__ == "__main__":
    with as_program("jax_usual"):
        main()
