"""The additions of `--mode tuned` in JAX: the same training, but faster. train.py is complete without this file.

Each measure's gain is given with it: images per second with the measure, divided by those without it, for the cnn on
digits (batch size 32) and for lenet on MNIST (batch size 128); medians of three runs of `python -m jax_impl`, one of
each in turn, on the machine of docs/performance.md.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from numpy.typing import NDArray

from common.experiment import Experiment
from common.record.recorder import Recorder
from common.spec.options import TrainConfig
from common.spec.randomness import positions
from common.spec.state import TrainState
from jax_impl.data import Batch, Batches
from jax_impl.train import LossAndCorrect
from jax_impl.weights import put_array


def compiler_options(config: TrainConfig) -> dict[str, str] | None:
    """XLA's options. By default it computes convolutions, sums and products on the CPU with YNNPACK; not here.

    Gain: 0.97 (digits), 1.82 (MNIST). In 64 bits, however, a step of resnet8 would take five times as long.
    """
    if config.accelerator == "cpu" and config.precision != "64":
        return {"xla_cpu_experimental_ynn_fusion_type": ""}
    return None


def max_pool(x: jax.Array) -> jax.Array:
    """Maximum over 2 x 2, (n, H, W, C) to (n, H // 2, W // 2, C); its gradient needs no search for the largest value.

    Gain: 1.29 (digits), 2.16 (MNIST).
    Equal values share the gradient, whereas nnx.max_pool's first one gets all of it. Behind a ReLU values are equal if
    they are zero, where the gradient ends, or if they come from equal pixels, where it makes no difference to kernels.
    """
    n, height, width, channels = x.shape
    x = x[:, : height // 2 * 2, : width // 2 * 2]
    return x.reshape(n, height // 2, 2, width // 2, 2, channels).max((2, 4))


# --- The data: images stay as they are stored until they are in the step, and are prepared there ---


class Resident:
    """A data set in the devices' memory; the step gathers its batch."""

    def __init__(self, batches: Batches) -> None:
        self.batches, self.prepare = batches, batches.prepare
        everywhere = NamedSharding(batches.sharding.mesh, PartitionSpec())
        self.whole = tuple(
            put_array(np.ascontiguousarray(array), everywhere) for array in (batches.images, batches.labels)
        )

    def stored(self, *rows: NDArray[Any]) -> Iterator[tuple[Any, ...]]:
        """What the step gets of each batch; `rows`: visits and weights, (batches, n).

        In the first epoch of a resumed run, or the last one with --max-steps, rows are missing. They are filled up,
        since a step is compiled for one number of rows.
        """
        missing = self.batches.num_batches - len(rows[0])
        filled = [np.pad(array, [(0, missing), (0, 0)]) for array in rows]
        on_devices = [self.batches.divided(self.batches.own(array), axis=1) for array in filled]
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


STEPS_PER_CALL = 10  # on GPUs


class TunedLoop:
    """`train_steps` and `evaluate`, which replace those of train.py.

    The modules are taken apart once, not in each step as by nnx.jit ("Functional training loop" in Flax's guide
    "Performance considerations"), and the arrays' memory is used again.

    On GPUs, where starting a step takes longer than a small step, one call takes several steps. Gain on an H100: 2.3
    (digits), 2.7 (MNIST), by `python -m benchmarks.limit --accelerator gpu`.
    On the CPU XLA computes convolutions inside of loops without its libraries. Gain there: 0.13 (digits).
    """

    def __init__(
        self,
        experiment: Experiment,
        sharding: NamedSharding,
        steps: tuple[Callable[..., LossAndCorrect], Callable[..., LossAndCorrect]],
        trained: tuple[Any, ...],
        recorder: Recorder,
    ) -> None:
        """Args:
        steps: train.py's `train_step` and `eval_step` of this training, not compiled yet.
        trained: network, optimizer and scale; the last may be None.
        """
        config = experiment.config
        self.plan, self.trained, self.recorder = experiment.plan, trained, recorder
        self.step, self.eval_step = steps
        self.graph, state = nnx.split(trained)
        self.arrays, self.tree = jax.tree.flatten(state)  # which a call passes faster than the state
        self.train_batches, self.test_batches = (Batches(experiment, sharding, trains) for trains in (True, False))
        source = Resident if experiment.is_resident else Streamed
        self.training, self.testing = source(self.train_batches), source(self.test_batches)
        options = compiler_options(config)
        self.take_step = jax.jit(self.step_of, donate_argnums=0, compiler_options=options)
        self.take_steps = jax.jit(self.steps_of, donate_argnums=0, compiler_options=options)
        self.evaluate_batch = jax.jit(self.eval_step_of, compiler_options=options)
        together = config.accelerator == "gpu" and source is Resident and config.accumulate_grad_batches == 1
        self.steps_per_call = STEPS_PER_CALL if together else 1
        if self.steps_per_call > 1:  # compiled here, with a copy of the state
            *stored, _ = next(self.training.stored(*self.train_batches.rows(self.plan.epochs_done)))
            self.take_steps([jnp.copy(array) for array in self.arrays], stored, 0)
        # Compiled now, during start-up, and not in the first evaluation.
        self.evaluate_batch(self.arrays, next(self.testing.stored(*self.test_batches.rows())))

    def step_of(self, arrays: list[jax.Array], stored: list[tuple[Any, ...]]) -> tuple[list[jax.Array], LossAndCorrect]:
        """`train_step` as a function of the state's arrays: returns the new ones, too."""
        trained = nnx.merge(self.graph, self.tree.unflatten(arrays))
        shares = self.step(*trained, [self.training.prepared(*batch) for batch in stored])
        return jax.tree.leaves(nnx.state(trained)), shares

    def steps_of(
        self, arrays: list[jax.Array], stored: list[jax.Array], first: jax.Array
    ) -> tuple[list[jax.Array], LossAndCorrect]:
        """The steps from batch `first` of the epoch; the shares are those of each."""

        def take_step(arrays: list[jax.Array], index: jax.Array) -> tuple[list[jax.Array], LossAndCorrect]:
            return self.step_of(arrays, [(*stored, index)])

        return jax.lax.scan(take_step, arrays, first + jnp.arange(self.steps_per_call))

    def eval_step_of(self, arrays: list[jax.Array], stored: tuple[Any, ...]) -> tuple[jax.Array, jax.Array, jax.Array]:
        network, *_ = nnx.merge(self.graph, self.tree.unflatten(arrays))
        return self.eval_step(network, self.testing.prepared(*stored))

    def train_steps(self, epoch: int) -> Iterator[tuple[jax.Array, jax.Array, int]]:
        """Takes the steps of an epoch, counted from 0; gives losses and correct answers of each call, and its steps."""
        stored = self.training.stored(*self.train_batches.rows(epoch))
        steps = iter(self.plan.steps(epoch + 1))
        for step in steps:
            if 1 < self.steps_per_call <= self.recorder.steps_to_go():
                *arrays, first = next(stored)
                self.arrays, shares = self.take_steps(self.arrays, arrays, first)
                for _ in itertools.islice(steps, self.steps_per_call - 1):
                    next(stored)
                yield *shares, self.steps_per_call
                continue
            own = [next(stored) for _ in range(self.plan.batches_in(step))]
            self.arrays, shares = self.take_step(self.arrays, own)
            yield *shares, 1

    def evaluate(self) -> tuple[float, int, int]:
        """Sum of losses, number of correct answers and of examples of the whole test set, each example once."""
        self.put_back()
        sums = [self.evaluate_batch(self.arrays, stored) for stored in self.testing.stored(*self.test_batches.rows())]
        loss_sum, correct, count = (sum(part.item() for part in column) for column in zip(*sums, strict=True))
        return loss_sum, correct, count

    def put_back(self) -> None:
        """Gives the modules the arrays that the steps have computed."""
        nnx.update(self.trained, self.tree.unflatten(self.arrays))

    def state_after(self, get_state: Callable[[int], TrainState], steps: int) -> TrainState:
        self.put_back()
        return get_state(steps)
