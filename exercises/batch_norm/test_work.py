"""Checks of batch_norm."""

import torch
import torch.distributed as dist
from torch import nn

from exercises.conftest import largest_difference

ROWS = (slice(0, 5), slice(5, 8))  # of the whole batch, by rank: shares differ in size


def group():
    """This rank's rows of the whole batch."""
    dist.init_process_group("gloo")
    return ROWS[dist.get_rank()]


def make_batch():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(8, 3, generator=generator, dtype=torch.float64) + torch.arange(8)[:, None]


def check_near(what, found, wanted, hint):
    away = largest_difference([found.detach()], [wanted.detach()])
    assert away < 1e-9, f"{what}: {away:.3g} from one device's: {hint}"


def test_moments(work, ranks):
    """mean and variance are those of all rows"""
    for mean, variance, count in ranks(lambda: [one.detach() for one in work.global_moments(make_batch()[group()])], 2):
        hint = "5 rows here and 3 there: how does each process learn of the others'?"
        assert set(torch.as_tensor(count).flatten().tolist()) == {8}, hint
        check_near("the mean", mean, make_batch().mean(dim=0), "is the mean of two means the mean?")
        hint = "around whose mean are the squares, and by what is their sum divided?"
        check_near("the biased variance", variance, make_batch().var(dim=0, correction=0), hint)


def test_backward(work, ranks):
    """a sum's gradient is that of all losses, and the one that was given stays"""

    def gradients():
        dist.init_process_group("gloo")
        mine, given = torch.ones(3, dtype=torch.float64, requires_grad=True), []
        total = work.SumOverProcesses.apply(mine)
        total.register_hook(given.append)
        (total * 10.0 ** dist.get_rank()).sum().backward()
        return mine.grad.tolist(), given[0].tolist()

    for rank, (gradient, given) in enumerate(ranks(gradients, 3)):
        assert gradient == [111.0] * 3, "three losses have gradients of 1, 10 and 100: whose are in yours, how often?"
        assert given == [10.0**rank] * 3, "the gradient that was given: who else may read it?"


def test_layer(work, ranks):
    """outputs, gradients and running averages are one device's"""

    def forward_backward():
        rows, layer = group(), work.SyncBatchNorm(3, eps=0.5, momentum=0.3).double()
        mine = make_batch()[rows].requires_grad_()
        output = layer(mine)
        (output**3).sum().backward()
        assert not layer.running_var.requires_grad, "the running variance holds on to the graph of every step"
        layer(2 * mine)
        return output.detach(), mine.grad, layer.running_mean, layer.running_var

    whole, layer = make_batch().requires_grad_(), nn.BatchNorm1d(3, eps=0.5, momentum=0.3, affine=False).double()
    output = layer(whole)
    (output**3).sum().backward()
    layer(2 * whole)
    for rows, (found, gradient, mean, variance) in zip(ROWS, ranks(forward_backward, 2)):
        check_near("the output", found, output[rows], "whose mean, which variance, and where does eps stand?")
        check_near("the input's gradient", gradient, whole.grad[rows], "how does a row here affect a row there?")
        check_near("the running mean", mean, layer.running_mean, "which way does it move, by whose momentum?")
        check_near("the running variance", variance, layer.running_var, "which variance does nn.BatchNorm1d keep?")


def test_evaluation(work, ranks):
    """in evaluation no process asks another"""

    def evaluate():
        rows, layer = group(), work.SyncBatchNorm(3, eps=0.5).double().eval()
        layer.running_mean += 1.0
        layer.running_var *= 4.0
        return layer(make_batch()[rows]) if dist.get_rank() == 0 else None  # rank 1 takes part in no reduction

    wanted = (make_batch()[ROWS[0]] - 1.0) / 4.5**0.5
    check_near("the output", ranks(evaluate, 2)[0], wanted, "what is the input normalised with in evaluation?")
