"""The additions of `--mode tuned` in JAX: the same training, but faster. train.py is complete without this file."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from common.experiment import Experiment
from common.record.recorder import Recorder
from common.spec.randomness import positions
from common.spec.state import TrainState
from jax_impl.data import Batch, Batches, Prepare, TestBatches, TrainBatches
from jax_impl.precision import DTYPES
from jax_impl.train import Shares, eval_step

Trained = tuple[Any, ...]  # network, optimizer, average and scale; the last two may be None


class TunedLoop:
    """`train_steps` and `evaluate`, which replace those of train.py.

    - The modules are taken apart once, not in each step as by nnx.jit ("Functional training loop" in Flax's guide
      "Performance considerations"), and the arrays' memory is used again.
    - Images stay uint8, and where they fit they stay on the devices: a step gathers its batch and prepares it.
    - Then one call takes all steps until the recorder next fetches losses or reads the clock.
    """

    def __init__(
        self,
        experiment: Experiment,
        sharding: jax.sharding.Sharding,
        step: Callable[..., Shares],
        trained: Trained,
        recorder: Recorder,
    ) -> None:
        """`step`: train.py's `train_step` of this training, not compiled yet."""
        self.experiment, self.recorder, self.step, self.trained = experiment, recorder, step, trained
        self.graph, self.state = nnx.split(trained)
        self.train_batches, self.test_batches = TrainBatches(experiment, sharding), TestBatches(experiment, sharding)
        self.prepare_train, self.prepare_test = Prepare(experiment, experiment.augmentation), Prepare(experiment, None)
        self.train_call = jax.jit(self.take_steps, donate_argnums=0)
        self.eval_call = jax.jit(self.evaluate_batches)
        self.resident = experiment.config.data_on == "device"
        if self.resident:
            self.train_set, self.test_set = map(on_devices, (self.train_batches, self.test_batches))

    def put_back(self) -> None:
        """Gives the modules the arrays that the steps have computed."""
        nnx.update(self.trained, self.state)

    def state_after(self, get_state: Callable[[int], TrainState], steps: int) -> TrainState:
        self.put_back()
        return get_state(steps)

    # --- Compiled ---

    def take_steps(self, state: Any, data: Any, batches: Any, first: Any, number: Any) -> tuple[Any, Any, Any]:
        """Takes `number` of the steps, from `first` on.

        Args:
          data: images and labels of the whole set; or None.
          batches: visits and weights, (n, batches of a step, examples) each; before them images and labels, if `data`
            does not have them.

        Returns:
          The state; losses (n,) and correct answers (n,), those of the steps taken first, the others -1.
        """
        of_steps, per_step = batches[-1].shape[:2]

        def take_step(index: Any, carried: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            state, losses, correct = carried
            trained = nnx.merge(self.graph, state)
            own = [[array[first + index, batch] for array in batches] for batch in range(per_step)]
            shares = self.step(*trained, [self.to_batch(self.prepare_train, data, *arrays) for arrays in own])
            return nnx.state(trained), losses.at[index].set(shares[0]), correct.at[index].set(shares[1])

        dtype = DTYPES[self.experiment.config.precision]
        none = jnp.full(of_steps, -1, dtype), jnp.full(of_steps, -1, jnp.int64)
        return jax.lax.fori_loop(0, number, take_step, (state, *none))

    def evaluate_batches(self, state: Any, data: Any, batches: Any) -> tuple[Any, Any, Any]:
        """The sums of `eval_step` over the batches."""
        network, _, average, _ = nnx.merge(self.graph, state)

        def add(sums: Any, batch: Any) -> tuple[Any, None]:
            shares = eval_step(average or network, self.to_batch(self.prepare_test, data, *batch))
            return jax.tree.map(jnp.add, sums, shares), None

        zeros = jnp.zeros([], jnp.float64), jnp.zeros([], jnp.int64), jnp.zeros([], jnp.int64)
        return jax.lax.scan(add, zeros, batches)[0]

    def to_batch(self, prepare: Prepare, data: Any, *arrays: Any) -> Batch:
        if data is None:
            images, labels, visits, weights = arrays
        else:
            visits, weights = arrays
            images, labels = (array[positions(visits)] for array in data)
        return Batch(prepare(images, visits), labels, weights)

    # --- Called by `train` ---

    def train_steps(self, epoch: int) -> Iterator[tuple[jax.Array, jax.Array, int]]:
        """Takes the steps of an epoch, counted from 0; gives those of each call, and their number."""
        plan = self.experiment.plan
        rows = self.train_batches.rows(epoch)
        done = 0
        # The last step of an epoch may have fewer batches.
        for per_step, steps in itertools.groupby(plan.steps(epoch + 1), plan.batches_in):
            count = len(list(steps))
            own = [array[done : done + count * per_step].reshape(count, per_step, -1) for array in rows]
            done += count * per_step
            yield from self.resident_steps(own) if self.resident else self.streamed_steps(own)

    def resident_steps(self, rows: list[NDArray[Any]]) -> Iterator[tuple[jax.Array, jax.Array, int]]:
        batches = tuple(self.train_batches.divided(self.train_batches.own(array), axis=2) for array in rows)
        count, first = len(rows[0]), 0
        while first < count:
            number = min(self.recorder.steps_to_go(), count - first)
            self.state, losses, correct = self.train_call(self.state, self.train_set, batches, first, number)
            yield losses, correct, number
            first += number

    def streamed_steps(self, rows: list[NDArray[Any]]) -> Iterator[tuple[jax.Array, jax.Array, int]]:
        """A step in each call. While it is computed, the images of the next one are read."""
        for of_step in zip(*rows, strict=True):
            batches = streamed(self.train_batches, *(array[None] for array in of_step))
            self.state, losses, correct = self.train_call(self.state, None, batches, 0, 1)
            yield losses, correct, 1

    def evaluate(self) -> tuple[float, int, int]:
        """Sum of losses, number of correct answers and of examples of the whole test set, each example once."""
        self.put_back()
        test = self.test_batches
        if self.resident:
            rows = tuple(test.divided(test.own(array), axis=1) for array in test.rows())
            sums = [self.eval_call(self.state, self.test_set, rows)]
        else:
            batches = (streamed(test, *(array[None] for array in row)) for row in zip(*test.rows(), strict=True))
            sums = [self.eval_call(self.state, None, batch) for batch in batches]
        loss_sum, correct, count = (sum(part.item() for part in column) for column in zip(*sums, strict=True))
        return loss_sum, correct, count


def streamed(batches: Batches, visits: NDArray[Any], weights: NDArray[Any]) -> tuple[jax.Array, ...]:
    """Images, labels, visits and weights of batches on the devices, from visits and weights (..., n)."""
    visits, weights = batches.own(visits), batches.own(weights)
    return tuple(batches.divided(array, visits.ndim - 1) for array in (*batches.stored(visits), visits, weights))


def on_devices(batches: Batches) -> tuple[jax.Array, jax.Array]:
    """Images and labels of the set, on every device."""
    everywhere = batches.sharding.update(spec=jax.sharding.PartitionSpec())
    images, labels = (np.ascontiguousarray(array) for array in (batches.images, batches.labels))
    return jax.device_put(images, everywhere), jax.device_put(labels, everywhere)
