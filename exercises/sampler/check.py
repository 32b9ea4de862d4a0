"""Checks of sampler."""

import math
from collections import Counter
from types import ModuleType
from typing import Any

import torch

from exercises.checking import check, expect, expect_new_orders

SIZES = ((10, 4), (12, 4), (7, 2), (3, 5), (3, 8), (1, 4), (100, 1))  # examples, processes


def shares(work: ModuleType, length: int, world_size: int, epochs: int = 1, seed: int = 0) -> list[list[list[int]]]:
    """The indices of each rank, in each epoch."""
    samplers = [work.ShardSampler(length, rank, world_size, seed) for rank in range(world_size)]
    return [[list(map(int, epoch)) for epoch in work.read_epochs(sampler, epochs)] for sampler in samplers]


@check(
    "len() says how many indices each process gets", "10 examples for 4 processes that make the same number of steps"
)
def lengths(work: ModuleType) -> object:
    return [len(work.ShardSampler(length, 0, world_size, 0)) for length, world_size in SIZES]


@lengths.judge
def _(seen: Any) -> None:
    for (length, world_size), found in zip(SIZES, seen, strict=True):
        wanted = math.ceil(length / world_size)
        hint = "which examples would nobody get?" if found < wanted else "how many of them does nobody need?"
        told = f"{length} examples for {world_size} processes: yours {found} each, wanted {wanted}"
        expect(found == wanted, told, hint)


@check("all processes get as many", "what does __iter__ return, and what read_epochs?")
def same_number(work: ModuleType) -> object:
    return [shares(work, length, world_size) for length, world_size in SIZES]


@same_number.judge
def _(seen: Any) -> None:
    for (length, world_size), dealt in zip(SIZES, seen, strict=True):
        found = [len(share[0]) for share in dealt]
        wanted = [math.ceil(length / world_size)] * world_size
        equal = len(set(found)) == 1 or length < world_size
        hint = "how long must the order be?" if equal else "who waits for whom, if one process has a step more?"
        expect(found == wanted, f"{length} examples for {world_size} processes: yours {found}, wanted {wanted}", hint)


@check(
    "every example is dealt out, and none more often than need be", "are the processes' orders parts of the same one?"
)
def all_examples(work: ModuleType) -> object:
    return [shares(work, length, world_size) for length, world_size in SIZES]


@all_examples.judge
def _(seen: Any) -> None:
    alone = seen[-1][0][0]  # what one process gets of 100
    hint = "" if len(set(alone)) == len(alone) else "does the order hold each index once, and is each one read?"
    for (length, world_size), found in zip(SIZES, seen, strict=True):
        dealt = Counter(index for share in found for index in share[0])
        missing = sorted(set(range(length)) - set(dealt))
        told = f"{length} examples for {world_size} processes: {missing[:5]} were dealt out to nobody"
        expect(not missing, told, hint)
        expect(set(dealt) <= set(range(length)), f"of {length} examples, number {max(dealt)} was dealt out")
        (often, most), *_ = dealt.most_common()
        least = min(dealt.values())
        told = (
            f"{length} examples for {world_size} processes: number {often} was dealt out {most} times, others {least}"
        )
        expect(most - least <= 1, told, "with which numbers does the order go on after its end?")


@check(
    "process r gets numbers r, r + world_size, ... of the order, which begins again after its end",
    "at which places of the order are the numbers of process 1, one after the other?",
)
def interleaved(work: ModuleType) -> object:
    return [(shares(work, length, 1)[0][0], [share[0] for share in shares(work, length, 4)]) for length in (12, 10)]


@interleaved.judge
def _(seen: Any) -> None:
    for (alone, found), hint in zip(seen, ("", "what comes after the order's end?"), strict=True):
        expect(alone != sorted(alone), f"one process alone gets {alone}", "is it still a random order?")
        wanted = [(alone * 2)[rank:12:4] for rank in range(4)]
        expect(found == wanted, f"{len(alone)} examples, ordered {alone}: yours {found}, wanted {wanted}", hint)


@check("every epoch has another order, and the seed makes it again", "on what does the generator depend?")
def orders(work: ModuleType) -> object:
    before = torch.get_rng_state()
    ranks = shares(work, 100, 2, epochs=6)
    after = torch.get_rng_state()
    sampler = work.ShardSampler(100, 0, 2, 0)
    twice = [list(map(int, sampler)) for _ in range(2)]
    return before, after, ranks, shares(work, 100, 2, epochs=6), shares(work, 100, 2, seed=7)[0][0], twice


@orders.judge
def _(seen: Any) -> None:
    before, after, ranks, again, another_seed, twice = seen
    told = "the random numbers of the whole program begin again or go on when an order is read"
    expect(before == after, told, "which random numbers do you seed, and from which do you draw?")
    expect_new_orders(
        [[index for pair in zip(*epoch, strict=True) for index in pair] for epoch in zip(*ranks, strict=True)]
    )
    expect(again == ranks, "the same seed gave another order")
    expect(another_seed != ranks[0][0], "another seed gave the same order")
    expect(twice[0] == twice[1], "a sampler that was read twice in the same epoch gave two orders")


@check("the order is drawn at random, not shifted or strided", "what does torch.randperm return?")
def at_random(work: ModuleType) -> object:
    return [shares(work, 100, 1, seed=seed)[0][0] for seed in range(3)]


@at_random.judge
def _(seen: Any) -> None:
    expect([len(order) for order in seen] == [100] * 3, f"of 100 examples came {[len(order) for order in seen]}")
    for order in seen:
        strides = Counter((after - before) % 100 for before, after in zip(order, order[1:], strict=False))
        (stride, often), *_ = strides.most_common()
        expect(often < 20, f"{often} of 100 examples come {stride} after the one before")


@check("read_epochs tells the sampler the number of the epoch, from 0", "which epoch is the first one?")
def epochs_set(work: ModuleType) -> object:
    sampler, wanted = work.ShardSampler(100, 0, 2, 0), []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        wanted.append(list(map(int, sampler)))
    found = work.read_epochs(sampler, 3)  # of a sampler that has been used
    return wanted, [[list(map(int, epoch)) for epoch in found] for _ in range(2)]


@epochs_set.judge
def _(seen: Any) -> None:
    wanted, (found, again) = seen
    expect(found == wanted, "the orders of epochs 0, 1 and 2 are not those after set_epoch(0), (1) and (2)")
    expect(again == found, "what read_epochs returns can be read only once", "are all indices read?")


@check("each test example is counted once", "would you count an example twice to make the shares equal?")
def testing(work: ModuleType) -> object:
    return [
        [int(index) for rank in range(world_size) for index in work.test_indices(length, rank, world_size)]
        for length, world_size in SIZES
    ]


@testing.judge
def _(seen: Any) -> None:
    for (length, world_size), indices in zip(SIZES, seen, strict=True):
        found, hint = sorted(indices), ""
        if set(range(length)) - set(found):
            twice = len(found) > len(set(found))
            hint = "how do the processes agree on who has which?" if twice else "who has the last ones?"
        told = f"{length} test examples for {world_size} processes: counted are {found}"
        expect(found == list(range(length)), told, hint)
