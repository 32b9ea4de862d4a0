"""Checks of gradient_accumulation."""

from unittest import mock

import pytest
import torch
import torch._dynamo  # the first optimizer of each process would import it
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from exercises.conftest import largest_difference


def make_model():
    torch.manual_seed(1)
    return nn.Linear(4, 3).double()


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def make_batch(count):
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    return images, torch.randint(3, (count,), generator=generator)


def weights(model):
    return [parameter.detach() for parameter in model.parameters()]


def whole_steps(steps, count):
    """The weights after steps on a whole batch of `count` at once."""
    model = make_model()
    optimizer, (images, labels) = make_optimizer(model), make_batch(count)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return weights(model)


@pytest.mark.parametrize("count", [10, 9, 8, 3])
def test_parts(work, count):
    """a batch is cut into parts, none of which is too large"""
    parts = work.split(*make_batch(count), 4)
    hint = f"{count} examples in parts of 4: where does the last part begin and end?"
    assert [len(images) for images, _ in parts] == [len(part) for part in torch.arange(count).split(4)], hint
    for name, found, whole in zip(("images", "labels"), zip(*parts), make_batch(count)):
        assert torch.cat(found).tolist() == whole.tolist(), f"the {name} of all parts: are they the batch's, in order?"


def test_memory(work):
    """only one part is in memory at a time"""
    model, order = make_model(), []
    model.register_forward_hook(lambda _, inputs, __: order.append(f"forward {len(inputs[0])}"))
    model.register_full_backward_hook(lambda *_: order.append("backward"))
    optimizer = make_optimizer(model)
    optimizer.register_step_post_hook(lambda *_: order.append("update"))
    work.train_step(model, optimizer, *make_batch(10), 4)
    hint = "10 examples in parts of 4: when can the memory of a part's forward pass be given back?"
    assert order == ["forward 4", "backward", "forward 4", "backward", "forward 2", "backward", "update"], hint


@pytest.mark.parametrize(("steps", "part_size"), [(1, 5), (1, 4), (3, 5)])
def test_same_steps(work, steps, part_size):
    """steps in parts are steps on the whole, and return the mean loss"""
    model = make_model()
    optimizer, (images, labels) = make_optimizer(model), make_batch(10)
    wanted = loss = F.cross_entropy(model(images), labels)
    loss.backward()  # old gradients
    losses = [work.train_step(model, optimizer, images, labels, part_size) for _ in range(steps)]
    assert losses[0] == pytest.approx(wanted.item(), abs=1e-12), "the mean loss of all 10 examples"
    away = largest_difference(weights(model), whole_steps(steps, 10))
    hint = "what is in the gradients when a step begins, which parts are in them at the update, and what divides each?"
    assert away < 1e-12, f"after {steps} step(s) a weight is {away:.1e} from that of whole steps: {hint}"


def test_one_reduction(work, ranks):
    """two processes reduce once a step, and train as one"""

    def train():
        dist.init_process_group("gloo")
        network, counts, reductions, reduce = make_model(), [], [], dist.all_reduce
        model = DistributedDataParallel(network)

        def hook(_, bucket):
            reductions.append(bucket.index())
            mean = bucket.buffer() / dist.get_world_size()
            return reduce(mean, async_op=True).get_future().then(lambda done: done.value()[0])

        model.register_comm_hook(None, hook)
        optimizer, batch = make_optimizer(model), [whole[dist.get_rank() :: 2] for whole in make_batch(20)]
        with mock.patch("torch.distributed.all_reduce", wraps=dist.all_reduce) as by_hand:
            for part_size in (4, 5):  # the last part of 10 is smaller, or as large as the others
                work.train_step(model, optimizer, *batch, part_size)
                counts.append(len(reductions))
        return counts, by_hand.call_count, weights(network)

    for counts, by_hand, found in ranks(train, 2):
        assert counts == [1, 2], "reductions after 1 step and after 2: which backward passes must be in the context?"
        assert by_hand == 0, "calls of all_reduce besides DDP's: what has DDP's reduction done already?"
        away = largest_difference(found, whole_steps(2, 20))
        assert away < 1e-12, (
            f"a weight is {away:.1e} from one process's: which parts are in the gradients when reduced?"
        )
