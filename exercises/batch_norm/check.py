"""Checks of batch_norm."""

from types import ModuleType

import torch
import torch.distributed as dist
from torch import nn

from exercises.checking import check, expect

ROWS = ((0, 5), (5, 8))  # of the whole batch, by rank: shares differ in size


def group() -> slice:
    """This rank's rows of the whole batch."""
    dist.init_process_group("gloo")
    return slice(*ROWS[dist.get_rank()])


def make_batch() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(8, 3, generator=generator, dtype=torch.float64) + torch.arange(8)[:, None]


def away(one: torch.Tensor, other: torch.Tensor) -> float:
    return (one.detach() - other.detach()).abs().max().item()


@check(
    "mean and variance are those of all rows", "5 rows here and 3 there: is the mean of two means the mean?", ranks=2
)
def moments(work: ModuleType) -> None:
    rows, batch = group(), make_batch()
    mean, variance, count = work.global_moments(batch[rows])
    counts = set(torch.as_tensor(count).flatten().tolist())  # one number, or one for each column
    expect(counts == {8}, f"5 and 3 rows were counted as {', '.join(f'{one:g}' for one in counts)}")
    expect(away(mean, batch.mean(dim=0)) < 1e-12, f"the mean is {batch.mean(dim=0).tolist()}, not {mean.tolist()}")
    wanted = batch.var(dim=0, correction=0)
    expect(away(variance, wanted) < 1e-12, f"the biased variance is {wanted.tolist()}, not {variance.tolist()}")


@check(
    "a sum's gradient is that of all losses, and the one that was given stays",
    "who else may read the gradient that backward() is given?",
    ranks=2,
)
def backward(work: ModuleType) -> None:
    group()
    mine = torch.ones(3, dtype=torch.float64, requires_grad=True)
    factors, given = torch.arange(3, dtype=torch.float64) + 10 ** dist.get_rank(), []
    total = work.SumOverProcesses.apply(mine)
    total.register_hook(given.append)
    (total * factors).sum().backward()
    found = mine.grad.tolist()
    expect(found == [11, 13, 15], f"the gradients of two losses are 1, 2, 3 and 10, 11, 12, and of both {found}")
    expect(torch.equal(given[0], factors), f"the gradient that was given has become {given[0].tolist()}")


@check(
    "the output is one device's",
    "a batch in which all values are the same: what keeps the division from failing?",
    ranks=2,
)
def output(work: ModuleType) -> None:
    rows, batch = group(), make_batch()
    layer = work.SyncBatchNorm(3, eps=0.5).double()
    wanted = nn.BatchNorm1d(3, eps=0.5, affine=False).double()(batch)[rows]
    found = away(layer(batch[rows]), wanted)
    expect(found < 1e-12, f"an output is {found:.1e} from that of one device with the whole batch")


@check("so are the gradients", "through what has a row here an effect on a row there?", ranks=2)
def gradients(work: ModuleType) -> None:
    rows, batch = group(), make_batch()
    factors = torch.arange(24, dtype=torch.float64).reshape(8, 3) ** 2
    whole = batch.clone().requires_grad_()
    (nn.BatchNorm1d(3, affine=False).double()(whole) * factors).sum().backward()
    mine = batch[rows].clone().requires_grad_()
    (work.SyncBatchNorm(3).double()(mine) * factors[rows]).sum().backward()
    expect(mine.grad is not None, "no gradient has reached the input")
    found = away(mine.grad, whole.grad[rows])
    expect(found < 1e-9, f"a gradient of the input is {found:.1e} from that of one device with the whole batch")


@check(
    "the running averages are one device's",
    "which variance does nn.BatchNorm1d keep, which way do its averages move, and by whose momentum?",
    ranks=2,
)
def running(work: ModuleType) -> None:
    rows, batch = group(), make_batch()
    layer = work.SyncBatchNorm(3, momentum=0.3).double()
    wanted = nn.BatchNorm1d(3, momentum=0.3, affine=False).double()
    for factor in (1.0, 2.0):
        layer((batch[rows] * factor).requires_grad_())
        wanted(batch * factor)
    expect(not layer.running_mean.requires_grad, "the running mean drags the graph of all steps along")
    expect(not layer.running_var.requires_grad, "the running variance drags the graph of all steps along")
    found = away(layer.running_mean, wanted.running_mean)
    expect(found < 1e-12, f"after two batches the running mean is {found:.1e} from one device's")
    found = away(layer.running_var, wanted.running_var)
    expect(found < 1e-12, f"after two batches the running variance is {found:.1e} from one device's")


@check("in evaluation no process asks another", "what is the input normalised with then?", ranks=2, seconds=6)
def evaluation(work: ModuleType) -> None:
    rows, batch = group(), make_batch()
    layer = work.SyncBatchNorm(3).double().eval()
    layer.running_mean += 1.0
    layer.running_var *= 4.0
    if dist.get_rank() == 0:  # rank 1 would never take part in a reduction
        found = away(layer(batch[rows]), (batch[rows] - 1.0) / (4 + 1e-5) ** 0.5)
        expect(found < 1e-12, f"an output is {found:.1e} from what the running averages give")
