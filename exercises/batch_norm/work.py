"""Batch normalisation across devices: the mean and variance of which batch?

torchrun --standalone --nproc-per-node 2 batch_norm.py

torch.nn.SyncBatchNorm does not run on the CPU. The SyncBatchNorm of this file runs everywhere.
"""

import os

import torch
import torch.distributed as dist
from torch import nn


class SumOverProcesses(torch.autograd.Function):
    """The sum of a tensor over all processes, with a gradient. Autograd does not track dist.all_reduce alone."""

    @staticmethod
    def forward(context: torch.autograd.function.FunctionCtx, mine: torch.Tensor) -> torch.Tensor:
        total = mine.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(context: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> torch.Tensor:
        # `gradient`: the gradient of this process's loss with respect to the sum. The losses of all processes depend on
        # the sum, and so on `mine`.
        # Gap 1: the gradient of the sum of all losses with respect to `mine`. Leave `gradient` itself as it is.
        ### BEGIN SOLUTION
        total = gradient.clone()
        dist.all_reduce(total)
        return total
        ### END SOLUTION


def global_moments(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean and biased variance of each column over the rows of all processes, (C,), and the number of these rows.

    `values`: float32 or float64 (N, C), N > 0; N differs from process to process. Mean and variance have its dtype. The
    number may have any dtype and any shape that broadcasts to (C,).
    """
    # Gap 2: sums over all processes (SumOverProcesses.apply), divided by the number of rows of all processes.
    ### BEGIN SOLUTION
    rows = values.new_full((1,), len(values))
    sums = SumOverProcesses.apply(torch.cat([values.sum(dim=0), (values**2).sum(dim=0), rows]))
    mean, square, count = sums[:-1].chunk(2)[0] / sums[-1], sums[:-1].chunk(2)[1] / sums[-1], sums[-1]
    return mean, square - mean**2, count
    ### END SOLUTION


class SyncBatchNorm(nn.Module):
    """Batch normalisation of (N, C) over the batch of all processes: like nn.BatchNorm1d, but without weights."""

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.training:
            mean, variance, count = global_moments(values)
            # Gap 3: move the running averages by `momentum` towards the values of this batch, without a graph. For the
            # running variance, PyTorch takes the unbiased variance of the batch.
            ### BEGIN SOLUTION
            with torch.no_grad():
                self.running_mean += self.momentum * (mean - self.running_mean)
                self.running_var += self.momentum * (variance * count / (count - 1) - self.running_var)
            ### END SOLUTION
        else:
            mean, variance = self.running_mean, self.running_var
        # Gap 4: the normalised values.
        ### BEGIN SOLUTION
        return (values - mean) / torch.sqrt(variance + self.eps)
        ### END SOLUTION


def main() -> None:
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        raise SystemExit("start it with torchrun --standalone --nproc-per-node 2 batch_norm.py")
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    batch = torch.randn(16, 1) * 2 + torch.arange(16)[:, None]  # the later examples are larger
    alone, together, whole = nn.BatchNorm1d(1, affine=False), SyncBatchNorm(1), nn.BatchNorm1d(1, affine=False)
    share, wanted = (rows.tensor_split(world_size)[rank] for rows in (batch, whole(batch)))
    for name, layer in (("each its own batch", alone), ("one batch of all", together)):
        away = (layer(share) - wanted).abs().max()
        means = [torch.zeros(1) for _ in range(world_size)]
        dist.all_gather(means, layer.running_mean * 10)
        dist.all_reduce(away, dist.ReduceOp.MAX)
        if rank == 0:
            shown = ", ".join(f"{mean.item():.4f}" for mean in means)
            print(f"{name}: means {shown}; up to {away.item():.0e} from one device's output")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
