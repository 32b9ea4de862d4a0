"""Other right answers that the checks of batch_norm must let pass."""

from exercises.checking import Right

RIGHT = [
    Right(
        "the mean first, and then the squares of what is away from it",
        "    sums = SumOverProcesses.apply(torch.cat([values.sum(dim=0), (values**2).sum(dim=0), rows]))\n",
        "    count = SumOverProcesses.apply(rows)\n    mean = SumOverProcesses.apply(values.sum(dim=0)) / count\n"
        "    return mean, SumOverProcesses.apply(((values - mean) ** 2).sum(dim=0)) / count, count\n",
    ),
    Right(
        "the number of rows once for each column",
        "    rows = values.new_full((1,), len(values))\n"
        "    sums = SumOverProcesses.apply(torch.cat([values.sum(dim=0), (values**2).sum(dim=0), rows]))\n",
        "    rows = torch.full_like(values[0], len(values))\n"
        "    mine = torch.stack([values.sum(dim=0), (values**2).sum(dim=0), rows])\n"
        "    total, squares, count = SumOverProcesses.apply(mine)\n"
        "    return total / count, squares / count - (total / count) ** 2, count\n",
    ),
]
