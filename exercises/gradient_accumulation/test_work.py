"""Checks of gradient_accumulation."""

import pytest
import torch
import torch._dynamo  # the first optimizer of each process would import it
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from exercises.conftest import largest_difference


def make_training():
    torch.manual_seed(1)
    model = nn.Linear(4, 3).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def make_batch(count):
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    return images, torch.randint(3, (count,), generator=generator)


def check_weights(found, count, hint):
    """Weights must be those after two steps on a whole batch of `count` at once."""
    (model, optimizer), (images, labels) = make_training(), make_batch(count)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    away = largest_difference(found, [parameter.detach() for parameter in model.parameters()])
    assert away < 1e-12, f"after 2 steps a weight is {away:.1e} from that of whole steps: {hint}"


def test_parts(work):
    """a batch is cut into parts, none of which is too large"""
    for count, sizes in ((10, [4, 4, 2]), (9, [4, 4, 1]), (8, [4, 4]), (3, [3])):
        parts = work.split(*make_batch(count), 4)
        hint = f"{count} examples in parts of 4: where does the last part begin and end?"
        assert [len(images) for images, _ in parts] == sizes, hint
        for name, found, whole in zip(("images", "labels"), zip(*parts), make_batch(count)):
            assert torch.cat(found).tolist() == whole.tolist(), f"the {name} of all parts: are they the batch's?"


def test_memory(work):
    """only one part is in memory at a time"""
    (model, optimizer), order = make_training(), []
    model.register_forward_hook(lambda _, inputs, __: order.append(f"forward {len(inputs[0])}"))
    model.register_full_backward_hook(lambda *_: order.append("backward"))
    optimizer.register_step_post_hook(lambda *_: order.append("update"))
    work.train_step(model, optimizer, *make_batch(10), 4)
    hint = "10 examples in parts of 4: when can the memory of a part's forward pass be given back?"
    assert order == ["forward 4", "backward", "forward 4", "backward", "forward 2", "backward", "update"], hint


def test_same_steps(work):
    """steps in parts are steps on the whole, and return the mean loss"""
    for part_size in (5, 4):
        (model, optimizer), (images, labels) = make_training(), make_batch(10)
        wanted = F.cross_entropy(model(images), labels)
        wanted.backward()  # old gradients
        losses = [work.train_step(model, optimizer, images, labels, part_size) for _ in range(2)]
        assert losses[0] == pytest.approx(wanted.item(), abs=1e-12), "the mean loss of all 10 examples"
        hint = "what is in the gradients when a step begins, which parts are in them at its end, what divides each?"
        check_weights([weight.detach() for weight in model.parameters()], 10, f"parts of {part_size}: {hint}")


def test_one_reduction(work, ranks):
    """two processes reduce once a step, and train as one"""

    def train():
        dist.init_process_group("gloo")
        (network, optimizer), reductions = make_training(), []
        model = DistributedDataParallel(network)
        model.register_comm_hook(None, lambda _, bucket: (reductions.append(bucket), allreduce_hook(None, bucket))[1])
        batch = [whole[dist.get_rank() :: 2] for whole in make_batch(20)]
        for part_size in (4, 5):  # the last part of 10 is smaller, or as large as the others
            work.train_step(model, optimizer, *batch, part_size)
        return len(reductions), [weight.detach() for weight in network.parameters()]

    for count, found in ranks(train, 2):
        assert count == 2, "reductions in 2 steps: which backward passes must be in the context?"
        check_weights(found, 20, "which parts are in the gradients when they are reduced?")
