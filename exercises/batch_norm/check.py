"""Checks of batch_norm."""

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from exercises.checking import check, expect

ROWS = (slice(0, 5), slice(5, 8))  # of the whole batch, by rank: shares differ in size


def group() -> slice:
    """This rank's rows of the whole batch."""
    dist.init_process_group("gloo")
    return ROWS[dist.get_rank()]


def make_batch() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(8, 3, generator=generator, dtype=torch.float64) + torch.arange(8)[:, None]


def away(observed: Any, wanted: torch.Tensor) -> float:
    return (torch.tensor(observed, dtype=torch.float64) - wanted.detach()).abs().max().item()


@check(
    "mean and variance are those of all rows", "5 rows here and 3 there: is the mean of two means the mean?", ranks=2
)
def moments(work: ModuleType) -> object:
    mean, variance, count = work.global_moments(make_batch()[group()])
    return mean, variance, torch.as_tensor(count).flatten()  # one count, or one for each column


@moments.judge
def _(*ranks: Any) -> None:
    batch = make_batch()
    for mean, variance, counts in ranks:
        counted = ", ".join(f"{count:g}" for count in sorted(set(counts)))
        expect(set(counts) == {8}, f"5 and 3 rows were counted as {counted}")
        wanted = batch.mean(dim=0)
        expect(away(mean, wanted) < 1e-12, f"the mean: yours {mean}, wanted {wanted.tolist()}")
        wanted = batch.var(dim=0, correction=0)
        expect(away(variance, wanted) < 1e-12, f"the biased variance: yours {variance}, wanted {wanted.tolist()}")


@check(
    "a sum's gradient is that of all losses, and the one that was given stays",
    "who else may read the gradient that backward() is given?",
    ranks=2,
)
def backward(work: ModuleType) -> object:
    group()
    mine = torch.ones(3, dtype=torch.float64, requires_grad=True)
    factors, given = torch.arange(3, dtype=torch.float64) + 10 ** dist.get_rank(), []
    total = work.SumOverProcesses.apply(mine)
    total.register_hook(given.append)
    (total * factors).sum().backward()
    return mine.grad, given[0]


@backward.judge
def _(*ranks: Any) -> None:
    for rank, (gradient, given) in enumerate(ranks):
        expect(
            gradient == [11, 13, 15],
            f"the gradients of two losses are 1, 2, 3 and 10, 11, 12, and of both {gradient}",
        )
        expect(given == [10**rank + number for number in range(3)], f"the gradient that was given has become {given}")


@check(
    "the output is one device's",
    "a batch in which all values are the same: what keeps the division from failing?",
    ranks=2,
)
def output(work: ModuleType) -> object:
    return work.SyncBatchNorm(3, eps=0.5).double()(make_batch()[group()])


@output.judge
def _(*ranks: Any) -> None:
    wanted = nn.BatchNorm1d(3, eps=0.5, affine=False).double()(make_batch())
    for rows, mine in zip(ROWS, ranks, strict=True):
        found = away(mine, wanted[rows])
        expect(found < 1e-12, f"an output is {found:.1e} from that of one device with the whole batch")


def make_factors() -> torch.Tensor:
    return torch.arange(24, dtype=torch.float64).reshape(8, 3) ** 2


@check("so are the gradients", "through what has a row here an effect on a row there?", ranks=2)
def gradients(work: ModuleType) -> object:
    rows = group()
    mine = make_batch()[rows].requires_grad_()
    (work.SyncBatchNorm(3).double()(mine) * make_factors()[rows]).sum().backward()
    return mine.grad


@gradients.judge
def _(*ranks: Any) -> None:
    whole = make_batch().requires_grad_()
    (nn.BatchNorm1d(3, affine=False).double()(whole) * make_factors()).sum().backward()
    for rows, mine in zip(ROWS, ranks, strict=True):
        expect(mine is not None, "no gradient has reached the input")
        found = away(mine, whole.grad[rows])
        expect(found < 1e-9, f"a gradient of the input is {found:.1e} from that of one device with the whole batch")


FACTORS = (1.0, 2.0)  # of the batches of `running`


@check(
    "the running averages are one device's",
    "which variance does nn.BatchNorm1d keep, which way do its averages move, and by whose momentum?",
    ranks=2,
)
def running(work: ModuleType) -> object:
    rows, batch = group(), make_batch()
    layer = work.SyncBatchNorm(3, momentum=0.3).double()
    for factor in FACTORS:
        layer((batch[rows] * factor).requires_grad_())
    averages = layer.running_mean, layer.running_var
    return [(average, average.requires_grad) for average in averages]


@running.judge
def _(*ranks: Any) -> None:
    wanted = nn.BatchNorm1d(3, momentum=0.3, affine=False).double()
    for factor in FACTORS:
        wanted(make_batch() * factor)
    for (mean, mean_has_graph), (variance, variance_has_graph) in ranks:
        expect(not mean_has_graph, "the running mean drags the graph of all steps along")
        expect(not variance_has_graph, "the running variance drags the graph of all steps along")
        found = away(mean, wanted.running_mean)
        expect(found < 1e-12, f"after two batches the running mean is {found:.1e} from one device's")
        found = away(variance, wanted.running_var)
        expect(found < 1e-12, f"after two batches the running variance is {found:.1e} from one device's")


@check("in evaluation no process asks another", "what is the input normalised with then?", ranks=2, seconds=6)
def evaluation(work: ModuleType) -> object:
    rows = group()
    layer = work.SyncBatchNorm(3).double().eval()
    layer.running_mean += 1.0
    layer.running_var *= 4.0
    # Rank 1 would never take part in a reduction.
    return layer(make_batch()[rows]) if dist.get_rank() == 0 else None


@evaluation.judge
def _(first: Any, _: None) -> None:
    found = away(first, (make_batch()[ROWS[0]] - 1.0) / (4 + 1e-5) ** 0.5)
    expect(found < 1e-12, f"an output is {found:.1e} from what the running averages give")
