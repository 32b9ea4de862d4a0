from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from exercises.conftest import check_near, make_batch

check_near = partial(check_near, limit=1e-9)
BATCH = make_batch(8, 3)[0] + torch.arange(8)[:, None]


def own_rows():
    """This rank's rows of the whole batch: the shares differ in size."""
    return (slice(0, 5), slice(5, 8))[dist.get_rank()]


def test_moments(work, ranks):
    """mean and variance are those of all rows"""

    def check():
        mean, variance, count = work.global_moments(BATCH[own_rows()])
        hint = "rows of both processes, 5 and 3: how does each learn of the other's?"
        assert set(torch.as_tensor(count).flatten().tolist()) == {8}, hint
        check_near("the mean", [mean], [BATCH.mean(dim=0)], "is the mean of two means the mean?")
        hint = "around whose mean are the squares, and by what is their sum divided?"
        check_near("the biased variance", [variance], [BATCH.var(dim=0, correction=0)], hint)

    ranks(check, 2)


def test_backward(work, ranks):
    """a sum's gradient is that of all losses, and the one that was given stays"""

    def check():
        mine, given, factor = torch.ones(3, requires_grad=True), [], 10.0 ** dist.get_rank()
        total = work.SumOverProcesses.apply(mine)
        total.register_hook(given.append)
        (total * factor).sum().backward()
        assert mine.grad.tolist() == [111.0] * 3, "losses have gradients of 1, 10 and 100: whose are in yours?"
        assert given[0].tolist() == [factor] * 3, "the gradient that was given: who else may read it?"

    ranks(check, 3)


def test_layer(work, ranks):
    """outputs, gradients and running averages are one device's"""

    def check():
        rows, layer = own_rows(), work.SyncBatchNorm(3, eps=0.5, momentum=0.3).double()
        one_device = nn.BatchNorm1d(3, eps=0.5, momentum=0.3, affine=False).double()
        mine, whole = BATCH[rows].requires_grad_(), BATCH.clone().requires_grad_()
        found, wanted = layer(mine), one_device(whole)
        check_near("the output", [found], [wanted[rows]], "whose mean, which variance, and where does eps stand?")
        for output in (found, wanted):
            (output**3).sum().backward()
        check_near("the input's gradient", [mine.grad], [whole.grad[rows]], "how does a row here affect a row there?")
        assert not layer.running_var.requires_grad, "the running variance holds on to the graph of every step"
        layer(2 * mine)
        one_device(2 * whole)
        hint = "which way does it move, and how far? which variance does nn.BatchNorm1d keep?"
        for name in ("running_mean", "running_var"):
            check_near(name, [layer.get_buffer(name)], [one_device.get_buffer(name)], hint)

    ranks(check, 2)


def test_evaluation(work):
    """in evaluation no process asks another"""
    layer = work.SyncBatchNorm(3, eps=0.5).double().eval()  # there is no process group, so a reduction is an error
    layer.running_mean += 1.0
    layer.running_var *= 4.0
    wanted = (BATCH - 1.0) / 4.5**0.5
    check_near("the output", [layer(BATCH)], [wanted], "what is the input normalised with in evaluation?")
