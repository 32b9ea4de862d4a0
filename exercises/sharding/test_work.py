import time
from itertools import groupby
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.utils import parameters_to_vector
from torch.profiler import ProfilerActivity, profile

from exercises.conftest import check_near, make_batch, train_alone

SIZES = [35, 48, 21]  # numbers in weight and bias of each layer: not all are divisible by 2
ROWS = (slice(0, 9), slice(9, 14))  # of the whole batch, by rank


def make_network():
    torch.manual_seed(1)
    first, second, third = (nn.Linear(*sizes, dtype=torch.float64) for sizes in ((4, 7), (7, 6), (6, 3)))
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), third)


def own_batch(step=0):
    return [whole[ROWS[dist.get_rank()]] for whole in make_batch(14, seed=step)]


def train(work, way):
    model, optimizer = work.make_training(way, make_network())
    for step in range(3):
        work.train_step(model, optimizer, *own_batch(step), 14)
    return model, optimizer


def check_trained(work, weights, hint):
    """Flat weights must be those of a network that one process trains."""
    network = make_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    train_alone(network, optimizer, [make_batch(14, seed=step) for step in range(3)])
    check_near("a weight after 3 steps", [weights], [parameters_to_vector(network.parameters())], hint)


def test_scattered(work, ranks):
    """a tensor is padded to the next multiple, and each rank gets its share of the sum"""
    lengths = [len(work.padded(torch.ones(length), 4)) for length in (1, 4, 5)]
    assert lengths == [4, 4, 8], "lengths of 1, 4 and 5 numbers, padded for 4 parts: which multiple comes next?"
    shares = ranks(lambda: work.summed_share(torch.arange(1.0, 6) * 10.0 ** dist.get_rank()).tolist(), 3)
    hint = "the shares of 3 ranks of the sum of 5 numbers: how long is a share, and is it a sum or a mean?"
    assert shares == [[111, 222], [333, 444], [555, 0]], hint


def test_sharded_optimizer(work, ranks):
    """a sharded optimizer: the weights of one process, and a share of the velocity in each rank"""

    def replica():
        hint = "all_reduce gives every rank the whole sum: which call gives it only its share?"
        dist.all_reduce = mock.Mock(side_effect=AssertionError(hint))
        model, optimizer = train(work, work.OPTIMIZER_SHARDED)
        return parameters_to_vector(model.parameters()).detach(), len(optimizer.velocity)

    for weights, length in ranks(replica, 2):
        hint = "who updates which weights, how do the others get them, and what must last from step to step?"
        check_trained(work, weights, hint)
        assert length == 52, "104 weights and 2 ranks: the numbers in a rank's velocity"


def test_asynchronous(work, ranks):
    """a gather starts without waiting for the other ranks, and gives each rank the whole layer"""

    def replica():
        layer = work.ShardedLinear(make_network()[0], 0)
        while dist.get_rank() == 1 and not Path("started").exists():
            time.sleep(0.01)  # rank 0 must not wait for this one
        layer.start_gather()
        Path("started").touch()
        return parameters_to_vector(layer.finish_gather()).tolist()

    wanted = parameters_to_vector(make_network()[0].parameters()).tolist()
    assert ranks(replica, 2) == [wanted] * 2, "weight and bias in both ranks: are all shares there, in order?"


def test_all_sharded(work, ranks):
    """all sharded: the weights of one process after several steps"""
    replicas = ranks(lambda: [layer.share.detach() for layer in train(work, work.ALL_SHARDED)[0].layers], 2)
    weights = torch.cat([torch.cat(shares)[:size] for size, *shares in zip(SIZES, *replicas)])
    hint = "in which order are the gradients of weight and bias, who divides their sum, and is each step's gather new?"
    check_trained(work, weights, hint)


def test_overlap(work, ranks):
    """the next layer's gather starts before this layer computes, in both passes, and no layer stays whole"""

    def replica():
        model, _ = work.make_training(work.ALL_SHARDED, make_network())
        (images, labels), gathered, gather = own_batch(), [], dist.all_gather_into_tensor

        def noted(output, *arguments, **options):
            gathered.append(StorageWeakRef(output.untyped_storage()))
            return gather(output, *arguments, **options)

        dist.all_gather_into_tensor = noted
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            loss = F.cross_entropy(model(images), labels)
            end = time.monotonic() + 1  # gloo's threads may free theirs late
            while (kept := sum(not storage.expired() for storage in gathered)) and time.monotonic() < end:
                time.sleep(0.01)
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
        model, _ = train(work, "fully_shard")
        assert all(isinstance(layer, FSDPModule) for layer in (model, *model[::2])), "on which modules do you call it?"
        return parameters_to_vector(parameter.full_tensor().detach() for parameter in model.parameters())

    check_trained(work, ranks(replica, 2)[0], "by what are the sums of the gradients divided?")


def test_costs(work):
    """the bytes that a rank holds and sends, by arithmetic"""
    for way, wanted in {  # 104 numbers are 832 bytes; a fifth is 21 numbers, or 7 + 10 + 5 if each layer is cut
        work.REPLICATED: (832, 832, 832, 2 * 832 * 4 / 5),
        work.OPTIMIZER_SHARDED: (832, 832, 168, 2 * 168 * 4),
        work.ALL_SHARDED: (176, 176, 176, 3 * 176 * 4),
    }.items():
        hint = f"{way}, layers of {SIZES} numbers of 8 bytes, 5 ranks: what is whole, padded where, sent how often?"
        assert tuple(work.costs(way, SIZES, 5, 8)) == pytest.approx(wanted), hint
