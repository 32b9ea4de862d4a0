"""The examples in each step: order, batches and shards, the same for every implementation."""

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.spec.randomness import STREAM_ORDER, random_bits

EVAL_BATCH_SIZE = 1000  # images in a batch of an evaluation, all devices together


class Batch(NamedTuple):
    """A replica's shard of a batch, in a framework's own tensors.

    Attributes:
      inputs: inputs of the network: images (n, ...). For a network with dropout, a pair of images and their visits,
        int64 (n,), see `common.spec.randomness.visits`.
      labels: int64 (n,).
      count: number of examples in the global batch, which consists of all replicas' shards; if gradients are
        accumulated, in all batches of the step.
    """

    inputs: Any
    labels: Any
    count: Any


def summed(shares: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """The losses and the numbers of correct answers, each summed over the batches of a step."""
    losses, correct = zip(*shares, strict=True)
    return functools.reduce(operator.add, losses), functools.reduce(operator.add, correct)


def epoch_order(seed: int, epoch: int, num_examples: int) -> NDArray[np.int64]:
    """int64 (num_examples,): the order of training examples in `epoch` (from 1), shuffled anew in each epoch."""
    keys = random_bits(num_examples, seed, STREAM_ORDER, epoch)
    return np.argsort(keys, kind="stable").astype(np.int64)


def shards(num_examples: int, batch_size: int, num_replicas: int) -> NDArray[np.int64]:
    """int64 (num_batches, num_replicas, 3): start, stop and global count for each batch and replica.

    Batch b contains positions b * batch_size up to (b + 1) * batch_size of the order; the last batch contains what is
    left. The replicas take consecutive slices of equal size, as torch.chunk and tf.distribute cut a batch. The last
    slices may be smaller or empty if too few examples are left.
    The global count is the size of the whole batch. A step's loss is the sum over all replicas, divided once by the
    global count.
    """
    starts = np.arange(0, num_examples, batch_size, dtype=np.int64)
    counts = np.minimum(batch_size, num_examples - starts)
    sizes = -(-counts // num_replicas)
    cuts = starts[:, None] + np.minimum(sizes[:, None] * np.arange(num_replicas + 1), counts[:, None])
    whole = np.broadcast_to(counts[:, None], (len(starts), num_replicas))
    return np.stack([cuts[:, :-1], cuts[:, 1:], whole], axis=-1)


@dataclass(frozen=True)
class Plan:
    """The steps of a run and their sizes. Steps and epochs count from 1.

    Attributes:
      train_size: number of training examples.
      batch_size: number of examples in a batch, all devices together.
      accumulate_grad_batches: number of batches in a step, one after the other; the last step of an epoch may have
        fewer.
      whole_epoch_steps: number of steps over the whole training set, including an incomplete last one.
      schedule_steps: number of steps of the whole training, limited by `max_steps`; the learning rate's schedule runs
        over these.
      steps_per_epoch: number of steps that the run takes in a full epoch. It is `whole_epoch_steps`, or fewer with
        `verify_steps`: then the run takes the first batches of the epoch and its last one.
      total_steps: number of steps that the run takes.
      num_epochs: number of epochs begun; the last one may stop early.
      first_step: first step that this process takes; a resumed run has taken the steps before.
    """

    train_size: int
    batch_size: int
    accumulate_grad_batches: int
    whole_epoch_steps: int
    schedule_steps: int
    steps_per_epoch: int
    total_steps: int
    num_epochs: int
    first_step: int = 1

    @classmethod
    def make(
        cls,
        train_size: int,
        batch_size: int,
        epochs: int,
        max_steps: int,
        verify_steps: int | None = None,
        accumulate_grad_batches: int = 1,
    ) -> "Plan":
        whole = -(-train_size // (batch_size * accumulate_grad_batches))
        steps = whole * epochs if max_steps < 0 else min(whole * epochs, max_steps)
        in_epoch, total = whole, steps
        if verify_steps is not None and verify_steps < steps:
            total = verify_steps
            # A mistake may show at the end of an epoch, where the last batch is smaller, or in the next epoch's order.
            in_epoch = min(whole, verify_steps // 2 + 1 if steps > whole else verify_steps)
        batches = batch_size, accumulate_grad_batches
        return cls(train_size, *batches, whole, steps, in_epoch, total, -(-total // in_epoch))

    @property
    def examples_per_step(self) -> int:
        """Number of examples in all batches of a step, all devices together."""
        return self.batch_size * self.accumulate_grad_batches

    @property
    def epochs_done(self) -> int:
        """Number of finished epochs, in which this process takes no step."""
        return (self.first_step - 1) // self.steps_per_epoch

    @property
    def epochs_alike(self) -> list[range]:
        """Ranges of epochs, from 0, that this process takes: the rest of an unfinished epoch, then all whole epochs."""
        first, begun = divmod(self.first_step - 1, self.steps_per_epoch)
        whole = range(first + bool(begun), self.num_epochs)
        return [*([range(first, first + 1)] if begun else []), *([whole] if whole else [])]

    def all_steps(self, epoch: int) -> range:
        """The numbers of all steps in `epoch`, including those that an earlier process has taken."""
        return range((epoch - 1) * self.steps_per_epoch + 1, self.last_step(epoch) + 1)

    def steps(self, epoch: int) -> range:
        """The numbers of those steps in `epoch` that this process takes."""
        whole = self.all_steps(epoch)
        return range(max(whole.start, self.first_step), whole.stop)

    def last_step(self, epoch: int) -> int:
        """The last step of `epoch`."""
        return min(epoch * self.steps_per_epoch, self.total_steps)

    def epoch_of(self, step: int) -> int:
        return (step - 1) // self.steps_per_epoch + 1

    def count(self, step: int) -> int:
        """Number of examples in a step's global batch."""
        return self.examples_per_step if step % self.steps_per_epoch else self._last_count

    def batches_in(self, step: int) -> int:
        """Number of batches whose gradients make this step."""
        return -(-self.count(step) // self.batch_size)

    def shards(self, epoch: int, num_replicas: int) -> NDArray[np.int64]:
        """int64 (n, num_replicas, 3): the rows of the function `shards` for `steps(epoch)`.

        n is the sum of `batches_in` over all these steps. The global count is the size of the whole step.
        """
        rows = shards(self.train_size, self.batch_size, num_replicas)
        step = rows[:, 0, 0] // self.examples_per_step  # number within a whole epoch, from 0
        rows[:, :, 2] = np.minimum(self.examples_per_step, self.train_size - step * self.examples_per_step)[:, None]
        of_epoch = [*range(self.steps_per_epoch - 1), self.whole_epoch_steps - 1]
        first = self.all_steps(epoch).start
        return rows[np.isin(step, [of_epoch[number - first] for number in self.steps(epoch)])]

    def images(self, first_step: int, last_step: int) -> int:
        """Number of examples trained on in steps first_step to last_step, both included."""
        steps, ends = last_step - first_step + 1, last_step // self.steps_per_epoch
        ends -= (first_step - 1) // self.steps_per_epoch  # last steps of epochs, which may be smaller
        return (steps - ends) * self.examples_per_step + ends * self._last_count

    @property
    def _last_count(self) -> int:
        return self.train_size - (self.whole_epoch_steps - 1) * self.examples_per_step
