"""Mistakes that the checks of batch_norm must reject."""

from exercises.checking import Wrong

WRONG = [
    Wrong(
        "everybody its own batch",
        "        total = mine.clone()\n        dist.all_reduce(total)\n",
        "        total = mine.clone()\n",
        "moments",
    ),
    Wrong(
        "averaging averages",
        "    return mean, square - mean**2, count\n",
        "    mean = SumOverProcesses.apply(values.mean(dim=0)) / dist.get_world_size()\n"
        "    return mean, square - mean**2, count\n",
        "moments",
    ),
    Wrong(
        "averaging the replicas' variances",
        "    return mean, square - mean**2, count\n",
        "    own = SumOverProcesses.apply(values.var(dim=0, correction=0) * len(values)) / count\n"
        "    return mean, own, count\n",
        "moments",
    ),
    Wrong(
        "no gradient through the other processes",
        "        total = gradient.clone()\n        dist.all_reduce(total)\n",
        "        total = gradient.clone()\n",
        "gradients",
    ),
    Wrong(
        "moments without a graph",
        "            mean, variance, count = global_moments(values)\n",
        "            mean, variance, count = (one.detach() for one in global_moments(values))\n",
        "gradients",
    ),
    Wrong("the biased variance kept", "variance * count / (count - 1)", "variance", "running"),
    Wrong(
        "a momentum of one's own",
        "self.eps, self.momentum = eps, momentum",
        "self.eps, self.momentum = eps, 0.1",
        "running",
    ),
    Wrong("running averages with a graph", "            with torch.no_grad():\n", "            if True:\n", "running"),
    Wrong(
        "a running variance with a graph",
        "                self.running_var += self.momentum * (variance * count / (count - 1) - self.running_var)\n",
        "            self.running_var += self.momentum * (variance * count / (count - 1) - self.running_var)\n",
        "running",
    ),
    Wrong(
        "a variance of 1 in evaluation",
        "mean, variance = self.running_mean, self.running_var",
        "mean, variance = self.running_mean, torch.ones_like(self.running_var)",
        "evaluation",
    ),
    Wrong(
        "reducing the gradient that was given",
        "        total = gradient.clone()\n        dist.all_reduce(total)\n        return total\n",
        "        dist.all_reduce(gradient)\n        return gradient\n",
        "backward",
    ),
    Wrong(
        "the mean of the processes' gradients",
        "        total = gradient.clone()\n        dist.all_reduce(total)\n        return total\n",
        "        total = gradient / dist.get_world_size()\n        dist.all_reduce(total)\n        return total\n",
        "backward",
    ),
    Wrong("eps outside of the root", "torch.sqrt(variance + self.eps)", "(torch.sqrt(variance) + self.eps)", "output"),
    Wrong(
        "reducing in evaluation", "        else:\n", "        else:\n            global_moments(values)\n", "evaluation"
    ),
    Wrong(
        "the batch's own moments in evaluation",
        "            mean, variance = self.running_mean, self.running_var\n",
        "            mean, variance = values.mean(dim=0), values.var(dim=0, correction=0)\n",
        "evaluation",
    ),
]
