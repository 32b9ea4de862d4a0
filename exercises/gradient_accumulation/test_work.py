from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from exercises.conftest import check_near, make_batch, make_linear, train_alone


def make_model():
    model = make_linear()
    return model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def check_whole_steps(found, count, hint):
    """The model's weights are those after two steps on a whole batch of `count` at once."""
    model, optimizer = make_model()
    train_alone(model, optimizer, [make_batch(count)] * 2)
    check_near("a weight after 2 steps", found.parameters(), model.parameters(), hint)


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
    (model, optimizer), order = make_model(), []
    model.register_forward_hook(lambda _, inputs, __: order.append(f"forward {len(inputs[0])}"))
    model.register_full_backward_hook(lambda *_: order.append("backward"))
    optimizer.register_step_post_hook(lambda *_: order.append("update"))
    work.train_step(model, optimizer, *make_batch(10), 4)
    hint = "10 examples in parts of 4: when can the memory of a part's forward pass be given back?"
    assert order == ["forward 4", "backward", "forward 4", "backward", "forward 2", "backward", "update"], hint


def test_same_steps(work):
    """steps in parts are steps on the whole, and return the mean loss"""
    for part_size in (5, 4):
        (model, optimizer), (images, labels) = make_model(), make_batch(10)
        wanted = F.cross_entropy(model(images), labels)
        wanted.backward()  # old gradients
        losses = [work.train_step(model, optimizer, images, labels, part_size) for _ in range(2)]
        assert losses[0] == pytest.approx(wanted.item(), abs=1e-12), "the mean loss of all 10 examples"
        hint = f"parts of {part_size}: what is in the gradients when a step begins and when it ends? what divides each?"
        check_whole_steps(model, 10, hint)


def test_one_reduction(work, ranks):
    """two processes reduce once a step, and train as one"""

    def check():
        (network, optimizer), losses, counts = make_model(), [], []
        images, labels = (whole[dist.get_rank() :: 2] for whole in make_batch(20))
        wanted = F.cross_entropy(network(images), labels).item()
        model = DistributedDataParallel(network)
        model.register_comm_hook(None, allreduce_hook)  # DDP then calls dist.all_reduce
        with mock.patch("torch.distributed.all_reduce", wraps=dist.all_reduce) as reduce:
            for part_size in (4, 5):  # of parts of 5, the last one is as large as the others
                losses.append(work.train_step(model, optimizer, images, labels, part_size))
                counts.append(reduce.call_count)
        assert counts == [1, 2], "reductions after 1 step and after 2: which forward and backward passes must reduce?"
        check_whole_steps(network, 20, "with 2 processes, which parts are in the gradients when they are reduced?")
        assert losses[0] == pytest.approx(wanted, abs=1e-12), "the mean loss of this process's batch: divided by what?"

    ranks(check, 2)
