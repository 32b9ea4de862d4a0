"""Checks of batch_norm."""

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from exercises.checking import check, expect

ROWS = (slice(0, 5), slice(5, 8))  # of the whole batch, by rank: shares differ in size
COLUMNS = (3, 1)  # of the batches of `moments`
GRADIENTS = torch.tensor([[1.0], [10.0], [100.0]], dtype=torch.float64) + torch.arange(3) / 7  # of losses, by rank


def group() -> slice:
    """This rank's rows of the whole batch."""
    dist.init_process_group("gloo")
    return ROWS[dist.get_rank()]


def make_batch() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(8, 3, generator=generator, dtype=torch.float64) + torch.arange(8)[:, None]


def expect_near(what: str, found: Any, wanted: torch.Tensor, hint: str = "") -> None:
    """Expects the shape and the float64 numbers that are wanted. Shows the number that is furthest away."""
    mine, wanted = torch.tensor(found, dtype=torch.float64), wanted.detach()
    shapes = f"yours {tuple(mine.shape)}, wanted {tuple(wanted.shape)}"
    expect(mine.shape == wanted.shape, f"the shape of {what}: {shapes}", "which shape does the docstring name?")
    worst = (mine - wanted).abs().argmax()
    yours, right = mine.flatten()[worst].item(), wanted.flatten()[worst].item()
    hint = "in which dtype is it computed?" if abs(yours - right) < 1e-6 * abs(right) else hint
    expect(abs(yours - right) < 1e-9, f"{what}: yours {yours:.10g}, wanted {right:.10g}", hint)


@check(
    "mean and variance are those of all rows", "5 rows here and 3 there: is the mean of two means the mean?", ranks=2
)
def moments(work: ModuleType) -> object:
    batch = make_batch()[group()]
    seen = [work.global_moments(batch[:, :columns]) for columns in COLUMNS]
    return [(mean, variance, torch.as_tensor(count).flatten()) for mean, variance, count in seen]


@moments.judge
def _(*ranks: Any) -> None:
    for columns, (mean, variance, counts) in (pair for rank in ranks for pair in zip(COLUMNS, rank, strict=True)):
        batch = make_batch()[:, :columns]
        counted = ", ".join(f"{count:g}" for count in sorted(set(counts)))
        hint = "how many rows has each process, and how does it learn of the others'?"
        expect(set(counts) == {8}, f"5 and 3 rows together: yours {counted}, wanted 8", hint)
        expect_near("a column's mean", mean, batch.mean(dim=0))
        hint = "around whose mean are the squares, and by what is their sum divided?"
        expect_near("a column's biased variance", variance, batch.var(dim=0, correction=0), hint)


@check(
    "a sum's gradient is that of all losses, and the one that was given stays",
    "the losses of which processes are in yours, and how often?",
    ranks=3,
)
def backward(work: ModuleType) -> object:
    dist.init_process_group("gloo")
    mine = torch.ones(3, dtype=torch.float64, requires_grad=True)
    factors, given = GRADIENTS[dist.get_rank()], []
    total = work.SumOverProcesses.apply(mine)
    total.register_hook(given.append)
    (total * factors).sum().backward()
    return mine.grad, given[0]


@backward.judge
def _(*ranks: Any) -> None:
    wanted = GRADIENTS.sum(dim=0)
    for mine, (gradient, given) in zip(GRADIENTS.tolist(), ranks, strict=True):
        expect_near("three losses have gradients of about 1, 10 and 100; their sum's", gradient, wanted)
        hint = "who else may read the gradient that backward() is given?"
        expect(given == mine, f"the gradient that was given has become {given}", hint)


@check("the output is one device's", "whose mean, which variance, whose eps, and where does eps stand?", ranks=2)
def output(work: ModuleType) -> object:
    batch = make_batch()[group()]
    return work.SyncBatchNorm(3, eps=0.5).double()(batch), batch


@output.judge
def _(*ranks: Any) -> None:
    batch = make_batch()
    wanted = nn.BatchNorm1d(3, eps=0.5, affine=False).double()(batch)
    for rows, (mine, after) in zip(ROWS, ranks, strict=True):
        expect_near("an output", mine, wanted[rows])
        expect(after == batch[rows].tolist(), "the layer has changed its input", "who else may read the input?")


@check("the gradients are those of one device", "through what has a row here an effect on a row there?", ranks=2)
def gradients(work: ModuleType) -> object:
    rows = group()
    mine = make_batch()[rows].requires_grad_()
    (work.SyncBatchNorm(3, eps=0.5).double()(mine) ** 3).sum().backward()
    return mine.grad


@gradients.judge
def _(*ranks: Any) -> None:
    whole = make_batch().requires_grad_()
    (nn.BatchNorm1d(3, eps=0.5, affine=False).double()(whole) ** 3).sum().backward()
    for rows, mine in zip(ROWS, ranks, strict=True):
        expect(mine is not None, "no gradient has reached the input")
        expect_near("a gradient of the input", mine, whole.grad[rows])


@check(
    "the running averages are one device's",
    "which way do the averages of nn.BatchNorm1d move, and by whose momentum?",
    ranks=2,
)
def running(work: ModuleType) -> object:
    rows, batch = group(), make_batch()
    layer = work.SyncBatchNorm(3, momentum=0.3).double()
    for factor in (1.0, 2.0):
        layer((batch[rows] * factor).requires_grad_())
    return [(average, average.requires_grad) for average in (layer.running_mean, layer.running_var)]


@running.judge
def _(*ranks: Any) -> None:
    wanted = nn.BatchNorm1d(3, momentum=0.3, affine=False).double()
    for factor in (1.0, 2.0):
        wanted(make_batch() * factor)
    hint = "which variance does nn.BatchNorm1d keep, and of how many rows is the batch?"
    rights = ("mean", 0, wanted.running_mean, ""), ("variance", 1, wanted.running_var, hint)
    for rank, averages in enumerate(ranks):
        for (name, start, right, hint), (found, has_graph) in zip(rights, averages, strict=True):
            name = f"the running {name} of rank {rank}"
            expect(not has_graph, f"{name} holds on to the graph of every step", "when does autograd record nothing?")
            expect(found != [start] * 3, f"{name} is still {start}", "which process changes which tensor?")
            expect_near(f"{name} after two batches", found, right, hint)


@check("in evaluation no process asks another", "what is the input normalised with then?", ranks=2, seconds=6)
def evaluation(work: ModuleType) -> object:
    rows = group()
    layer = work.SyncBatchNorm(3, eps=0.5).double().eval()
    layer.running_mean += 1.0
    layer.running_var *= 4.0
    # Rank 1 would never take part in a reduction.
    return layer(make_batch()[rows]) if dist.get_rank() == 0 else None


@evaluation.judge
def _(first: Any, _: None) -> None:
    expect_near("an output", first, (make_batch()[ROWS[0]] - 1.0) / 4.5**0.5)
