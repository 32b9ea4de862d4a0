"""The additions of `--mode tuned` in JAX: the same training, but faster. train.py is complete without this file.

Each measure's gain is given with it: images per second with the measure, divided by those without it, for the cnn on
digits (batch size 32) and for lenet on MNIST (batch size 128); medians of three runs of `python -m jax_impl`, one of
each in turn, on the machine of docs/performance.md.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from numpy.typing import NDArray

from common.experiment import Experiment
from common.spec.randomness import positions
from common.spec.state import TrainState
from jax_impl.data import Batch, Batches, TestBatches, TrainBatches
from jax_impl.train import Shares, eval_step
from jax_impl.weights import put

# By default XLA computes convolutions, sums and products on the CPU with YNNPACK. This leaves it out.
# Gain: 0.97 (digits), 1.82 (MNIST).
CPU_OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": ""}


def max_pool(x: jax.Array) -> jax.Array:
    """Maximum over 2 x 2, (n, H, W, C) to (n, H // 2, W // 2, C); its gradient needs no search for the largest value.

    Gain: 1.29 (digits), 2.16 (MNIST).
    Equal values share the gradient, whereas nnx.max_pool's first one gets all of it. Behind a ReLU values are equal if
    they are zero, where the gradient ends, or if they come from equal pixels, where it makes no difference to kernels.
    """
    n, height, width, channels = x.shape
    x = x[:, : height // 2 * 2, : width // 2 * 2]
    return x.reshape(n, height // 2, 2, width // 2, 2, channels).max((2, 4))


# --- The data: images stay uint8 until they are in the step, and are prepared there ---


class Resident:
    """A data set in the devices' memory; the step gathers its batch."""

    def __init__(self, batches: Batches) -> None:
        self.batches, self.prepare = batches, batches.prepare
        everywhere = NamedSharding(batches.sharding.mesh, PartitionSpec())
        self.whole = tuple(put(np.ascontiguousarray(array), everywhere) for array in (batches.images, batches.labels))

    def stored(self, *rows: NDArray[Any]) -> Iterator[tuple[Any, ...]]:
        """What the step gets of each batch; `rows`: visits and weights, (batches, n)."""
        on_devices = [self.batches.divided(self.batches.own(array), axis=1) for array in rows]
        for index in range(len(rows[0])):
            yield (*self.whole, *on_devices, index)

    def prepared(self, images: jax.Array, labels: jax.Array, visits: Any, weights: Any, index: jax.Array) -> Batch:
        visits, weights = visits[index], weights[index]
        indices = positions(visits)
        return Batch(self.prepare(images[indices], visits), labels[indices], weights)


class Streamed:
    """A data set on the host. While a step is computed, the images of the next one are read."""

    def __init__(self, batches: Batches) -> None:
        self.batches, self.prepare = batches, batches.prepare

    def stored(self, *rows: NDArray[Any]) -> Iterator[tuple[Any, ...]]:
        for visits, weights in zip(*map(self.batches.own, rows), strict=True):
            arrays = (*self.batches.stored(visits), visits, weights)
            yield tuple(self.batches.divided(array) for array in arrays)

    def prepared(self, images: jax.Array, labels: jax.Array, visits: jax.Array, weights: jax.Array) -> Batch:
        return Batch(self.prepare(images, visits), labels, weights)


# --- The loop ---


class TunedLoop:
    """`train_steps` and `evaluate`, which replace those of train.py.

    The modules are taken apart once, not in each step as by nnx.jit ("Functional training loop" in Flax's guide
    "Performance considerations"), and the arrays' memory is used again.

    One call for several steps, with jax.lax.fori_loop, was tried: on the CPU XLA computes convolutions inside of loops
    without its libraries. Gain: 0.13 (digits).
    """

    def __init__(
        self, experiment: Experiment, sharding: NamedSharding, step: Callable[..., Shares], trained: tuple[Any, ...]
    ) -> None:
        """Args:
        step: train.py's `train_step` of this training, not compiled yet.
        trained: network, optimizer, average and scale; the last two may be None.
        """
        self.plan, self.step, self.trained = experiment.plan, step, trained
        self.graph, self.state = nnx.split(trained)
        self.train_batches, self.test_batches = TrainBatches(experiment, sharding), TestBatches(experiment, sharding)
        source = Resident if experiment.config.data_on == "device" else Streamed
        self.training, self.testing = source(self.train_batches), source(self.test_batches)
        options = CPU_OPTIONS if experiment.config.accelerator == "cpu" else None
        self.take_step = jax.jit(self.step_of, donate_argnums=0, compiler_options=options)
        self.evaluate_batch = jax.jit(self.eval_step_of, compiler_options=options)

    def step_of(self, state: Any, stored: list[tuple[Any, ...]]) -> tuple[Any, Shares]:
        """`train_step` as a function of arrays: returns the new state, too."""
        trained = nnx.merge(self.graph, state)
        shares = self.step(*trained, [self.training.prepared(*batch) for batch in stored])
        return nnx.state(trained), shares

    def eval_step_of(self, state: Any, stored: tuple[Any, ...]) -> tuple[jax.Array, jax.Array, jax.Array]:
        network, _, average, _ = nnx.merge(self.graph, state)
        return eval_step(average or network, self.testing.prepared(*stored))

    def train_steps(self, epoch: int) -> Iterator[Shares]:
        """Takes the steps of an epoch, counted from 0; gives the global loss and number of correct answers of each."""
        stored = self.training.stored(*self.train_batches.rows(epoch))
        for step in self.plan.steps(epoch + 1):
            own = [next(stored) for _ in range(self.plan.batches_in(step))]
            self.state, shares = self.take_step(self.state, own)
            yield shares

    def evaluate(self) -> tuple[float, int, int]:
        """Sum of losses, number of correct answers and of examples of the whole test set, each example once."""
        self.put_back()
        sums = [self.evaluate_batch(self.state, stored) for stored in self.testing.stored(*self.test_batches.rows())]
        loss_sum, correct, count = (sum(part.item() for part in column) for column in zip(*sums, strict=True))
        return loss_sum, correct, count

    def put_back(self) -> None:
        """Gives the modules the arrays that the steps have computed."""
        nnx.update(self.trained, self.state)

    def state_after(self, get_state: Callable[[int], TrainState], steps: int) -> TrainState:
        self.put_back()
        return get_state(steps)
