import math
from collections import Counter

import torch

SIZES = ((10, 4), (12, 4), (7, 2), (3, 5), (3, 8), (1, 4), (100, 1))  # examples, processes


def shares(work, length, world_size, epochs=1, seed=0):
    """The indices of each rank, in each epoch."""
    samplers = [work.ShardSampler(length, rank, world_size, seed) for rank in range(world_size)]
    return [[list(map(int, epoch)) for epoch in work.read_epochs(sampler, epochs)] for sampler in samplers]


def test_lengths(work):
    """len() says how many indices each process gets"""
    for length, world_size in SIZES:
        hint = f"{length} examples for {world_size} processes that make the same number of steps"
        assert len(work.ShardSampler(length, 0, world_size, 0)) == math.ceil(length / world_size), hint


def test_all_examples(work):
    """every example is dealt out, none more often than need be, and all processes get as many"""
    for length, world_size in SIZES:
        dealt, told = shares(work, length, world_size), f"{length} examples for {world_size} processes"
        found = [len(share[0]) for share in dealt]
        assert found == [math.ceil(length / world_size)] * world_size, f"{told}: how long must the order be?"
        counts = Counter(index for share in dealt for index in share[0])
        assert sorted(counts) == list(range(length)), f"{told}: are the processes' orders parts of the same one?"
        hint = f"{told}, how often one is dealt out at most: with which numbers does the order go on after its end?"
        assert max(counts.values()) == math.ceil(sum(found) / length), hint


def test_interleaved(work):
    """process r gets numbers r, r + world_size, ... of the order, which begins again after its end"""
    (order,) = shares(work, 10, 1)[0]
    assert order != sorted(order), "one process alone gets the order of the data set: is it a random order?"
    hint = f"the order is {order}: which of its places are process 1's, and what comes after its end?"
    assert [share[0] for share in shares(work, 10, 4)] == [(order * 2)[rank:12:4] for rank in range(4)], hint


def test_orders(work):
    """every epoch has another order, and the seed makes it again"""
    before = torch.get_rng_state()
    ranks = shares(work, 100, 2, epochs=6)
    hint = "reading an order draws from, or seeds, the random numbers of the whole program"
    assert torch.equal(before, torch.get_rng_state()), hint
    assert len(set(map(tuple, ranks[0]))) == 6, "different orders in 6 epochs: from what are they drawn?"
    assert shares(work, 100, 2, epochs=6) == ranks, "the same seed gave another order"
    assert shares(work, 100, 2, seed=7)[0][0] != ranks[0][0], "another seed gave the same order"


def test_testing(work):
    """each test example is counted once"""
    for length, world_size in SIZES:
        found = [int(index) for rank in range(world_size) for index in work.test_indices(length, rank, world_size)]
        hint = f"{length} test examples for {world_size} processes: would you count one twice to make the shares equal?"
        assert sorted(found) == list(range(length)), hint
