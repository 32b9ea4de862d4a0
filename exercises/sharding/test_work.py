"""Checks of sharding."""

import time
from itertools import groupby
from pathlib import Path
from unittest import mock

import torch
import torch._dynamo  # the first optimizer of each process would import it
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.multiprocessing.reductions import StorageWeakRef
from torch.profiler import ProfilerActivity, profile

from exercises.conftest import largest_difference

SIZES = [35, 48, 21]  # numbers in weight and bias of each layer: not all are divisible by 2
ROWS = (slice(0, 9), slice(9, 14))  # of the whole batch, by rank
STEPS = 3


def make_network():
    torch.manual_seed(1)
    first, second, third = (nn.Linear(*sizes, dtype=torch.float64) for sizes in ((4, 7), (7, 6), (6, 3)))
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), third)


def make_batch(rows, step=0):
    generator = torch.Generator().manual_seed(step)
    images = torch.randn(14, 4, generator=generator, dtype=torch.float64)
    return images[rows], torch.randint(3, (14,), generator=generator)[rows]


def one_process(steps):
    """The layers after training without sharding, and their gradients in the last step, as flat tensors."""
    network = make_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        images, labels = make_batch(slice(None), step)
        F.cross_entropy(network(images), labels).backward()
        optimizer.step()
    return layers_of(network.parameters()), layers_of(parameter.grad for parameter in network.parameters())


def layers_of(parameters):
    parameters = [parameter.detach().flatten() for parameter in parameters]
    return [torch.cat(pair) for pair in zip(parameters[::2], parameters[1::2])]


def train(work, way, steps=STEPS):
    model, optimizer = work.make_training(way, make_network())
    for step in range(steps):
        work.train_step(model, optimizer, *make_batch(ROWS[dist.get_rank()], step), 14)
    return model, optimizer


def check_near(what, found, wanted, hint):
    away = largest_difference(found, wanted)
    assert away < 1e-12, f"{what}: {away:.1e} from one process's: {hint}"


def test_padding(work):
    """a tensor is padded to the next multiple, with zeros at its end"""
    for length, parts, wanted in ((7, 2, 8), (8, 2, 8), (1, 3, 3), (5, 4, 8), (12, 12, 12)):
        found = work.padded(torch.arange(1.0, length + 1), parts).tolist()
        hint = f"{length} numbers for {parts} part(s): which multiple comes next?"
        assert found == [float(number) if number <= length else 0.0 for number in range(1, wanted + 1)], hint


def test_scattered(work, ranks):
    """each rank gets its share of the sum"""

    def share():
        dist.init_process_group("gloo")
        return work.summed_share(torch.arange(1.0, 6) * 10.0 ** dist.get_rank()).tolist()

    hint = "the shares of 3 ranks of the sum of 5 numbers: how long is a share, and is it a sum or a mean?"
    assert ranks(share, 3) == [[111, 222], [333, 444], [555, 0]], hint


def test_sharded_optimizer(work, ranks):
    """a sharded optimizer: the weights of one process, and a share of the velocity in each rank"""

    def replica():
        dist.init_process_group("gloo")
        hint = "all_reduce gives every rank the whole sum: which call gives it only its share?"
        dist.all_reduce = mock.Mock(side_effect=AssertionError(hint))
        model, optimizer = train(work, work.OPTIMIZER_SHARDED)
        return layers_of(model.parameters()), len(optimizer.velocity)

    for layers, length in ranks(replica, 2):
        hint = "who updates which weights, how do the others get them, and what must last from step to step?"
        check_near(f"weights after {STEPS} steps", layers, one_process(STEPS)[0], hint)
        assert length == 52, "104 weights and 2 ranks: the numbers in a rank's velocity"


def test_asynchronous(work, ranks):
    """a gather starts without waiting for the other ranks, and gives each rank the whole layer"""

    def replica():
        dist.init_process_group("gloo")
        layer = work.ShardedLinear(make_network()[0], 0)
        while dist.get_rank() == 1 and not Path("started").exists():
            time.sleep(0.01)  # rank 0 must not wait for this one
        layer.start_gather()
        Path("started").touch()
        return [one.flatten() for one in layer.finish_gather()]

    for found in ranks(replica, 2):
        check_near(
            "weight and bias",
            [torch.cat(found)],
            layers_of(make_network().parameters())[:1],
            "are all shares there, in order?",
        )


def test_all_sharded(work, ranks):
    """all sharded: the gradients of one process, and its weights after several steps"""

    def replica():
        dist.init_process_group("gloo")
        (first, _), (last, _) = train(work, work.ALL_SHARDED, 1), train(work, work.ALL_SHARDED)
        return [layer.share.grad for layer in first.layers], [layer.share.detach() for layer in last.layers]

    for what, shares, wanted, hint in zip(
        ("gradients", f"weights after {STEPS} steps"),
        zip(*ranks(replica, 2)),
        (one_process(1)[1], one_process(STEPS)[0]),
        ("in which order are weight and bias, and who divides the sum?", "are the shares gathered anew in each step?"),
    ):
        whole = [torch.cat(parts)[:size] for size, *parts in zip(SIZES, *shares)]
        check_near(what, whole, wanted, hint)


def test_overlap(work, ranks):
    """the next layer's gather starts before this layer computes, in both passes, and no layer stays whole"""

    def replica():
        dist.init_process_group("gloo")
        model, optimizer = work.make_training(work.ALL_SHARDED, make_network())
        gathered, gather = [], dist.all_gather_into_tensor

        def noted(output, *arguments, **options):
            gathered.append(StorageWeakRef(output.untyped_storage()))
            return gather(output, *arguments, **options)

        dist.all_gather_into_tensor = noted
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            loss = F.cross_entropy(model(make_batch(ROWS[dist.get_rank()])[0]), make_batch(ROWS[dist.get_rank()])[1])
            for _ in range(100):  # gloo's threads may free theirs late
                if all(storage.expired() for storage in gathered):
                    break
                time.sleep(0.01)
            kept = sum(not storage.expired() for storage in gathered)
            loss.backward()
        events = sorted(profiler.events(), key=lambda event: event.time_range.start)
        products = ("aten::addmm", "aten::mm", "aten::bmm")
        names = ["product" if event.name in products else event.name for event in events]
        names = [name for name in names if name.split()[0] in ("start", "wait", "product")]
        return kept, [sorted(run) for product, run in groupby(names, lambda name: name == "product") if not product]

    wanted = [["start 0", "start 1", "wait 0"], ["start 2", "wait 1"], ["wait 2"]]
    wanted += [["start 1", "start 2", "wait 2"], ["start 0", "wait 1"], ["wait 0"]]
    for kept, gathers in ranks(replica, 2):
        hint = "gathers before each layer's products: which line starts a gather, and which one waits?"
        assert gathers == wanted, hint
        assert kept == 0, "layers that are whole after the forward pass: what refers to the gathered weights?"


def test_annotated(work, ranks):
    """fully_shard: the training of one process, and each layer is gathered by itself"""

    def replica():
        dist.init_process_group("gloo")
        model, _ = train(work, "fully_shard")
        assert all(isinstance(layer, FSDPModule) for layer in (model, *model[::2])), "on which modules do you call it?"
        return layers_of(parameter.full_tensor() for parameter in model.parameters())

    for layers in ranks(replica, 2):
        hint = "by what are the sums of the gradients divided?"
        check_near(f"weights after {STEPS} steps", layers, one_process(STEPS)[0], hint)


def test_costs(work):
    """the bytes that a rank holds and sends, by arithmetic"""
    for sizes in (SIZES, [3, 3, 3, 3], [1, 1000, 7]):
        for count in (1, 2, 64):
            whole, share = sum(sizes) * 8, -(-sum(sizes) // count) * 8
            shares = sum(-(-size // count) for size in sizes) * 8
            for way, wanted in {
                work.REPLICATED: (whole, whole, whole, 2 * whole * (count - 1) / count),
                work.OPTIMIZER_SHARDED: (whole, whole, share, 2 * share * (count - 1)),
                work.ALL_SHARDED: (shares, shares, shares, 3 * shares * (count - 1)),
            }.items():
                hint = (
                    f"{way}, layers of {sizes} numbers, {count} rank(s): what is whole, padded where, sent how often?"
                )
                assert tuple(work.costs(way, sizes, count, 8)) == wanted, hint
