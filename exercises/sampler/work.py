"""What a sampler must do: deal out the examples of a data set to the processes, in another order in every epoch.

python sampler.py
"""

from collections.abc import Iterator
from itertools import cycle, islice

import torch
from torch.utils.data import Sampler


class ShardSampler(Sampler[int]):
    """The indices that one of `world_size` processes is to train on.

    All processes make the same number of steps, since they wait for each other's gradients in each step. So all get the
    same number of indices. If `length` is not a multiple of `world_size`, some examples are dealt out more than once.
    """

    def __init__(self, length: int, rank: int, world_size: int, seed: int) -> None:
        self.length, self.rank, self.world_size, self.seed = length, rank, world_size, seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        # Gap 1: how many indices does each process get?
        ### BEGIN SOLUTION
        return -(-self.length // self.world_size)
        ### END SOLUTION

    def __iter__(self) -> Iterator[int]:
        # Gap 2: draw an order of all indices with a generator of its own (torch.Generator). It depends on the seed and
        # the epoch alone. So each epoch has another order, and all processes have the same one.
        ### BEGIN SOLUTION
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.length, generator=generator).tolist()
        ### END SOLUTION
        # Gap 3: make the order long enough for all processes by repeating it from its start. Return this process's
        # share: the process of rank r gets numbers r, r + world_size, r + 2 * world_size, ... of the order.
        ### BEGIN SOLUTION
        whole = islice(cycle(order), len(self) * self.world_size)
        return islice(whole, self.rank, None, self.world_size)
        ### END SOLUTION


def read_epochs(sampler: ShardSampler, epochs: int) -> list[list[int]]:
    """The indices of each epoch, as training reads them."""
    found = []
    for epoch in range(epochs):
        # Gap 4: tell the sampler what it can't know by itself, and read all of its indices.
        ### BEGIN SOLUTION
        sampler.set_epoch(epoch)
        found.append(list(sampler))
        ### END SOLUTION
    return found


def test_indices(length: int, rank: int, world_size: int) -> list[int]:
    """The test examples of one process. No process waits for another here: shares may differ in size."""
    # Gap 5: every example is in exactly one process's share.
    ### BEGIN SOLUTION
    return list(range(rank, length, world_size))
    ### END SOLUTION


def main() -> None:
    length, world_size = 10, 4
    print(f"{length} examples for {world_size} processes")
    samplers = [ShardSampler(length, rank, world_size, seed=0) for rank in range(world_size)]
    shares = [read_epochs(sampler, epochs=3) for sampler in samplers]
    for epoch in range(3):
        print(f"training, epoch {epoch}: " + "  ".join(str(share[epoch]) for share in shares))
    print("testing:           " + "  ".join(str(test_indices(length, rank, world_size)) for rank in range(world_size)))


if __name__ == "__main__":
    main()
