"""Mistakes that the checks of sampler must reject."""

from exercises.checking import Wrong

PADDING = "        order += order[: len(self) * self.world_size - self.length]\n"

WRONG = [
    Wrong("no set_epoch", "        sampler.set_epoch(epoch)\n", "", "orders"),
    Wrong("an order that ignores the epoch", "manual_seed(self.seed + self.epoch)", "manual_seed(self.seed)", "orders"),
    Wrong("an order that ignores the seed", "manual_seed(self.seed + self.epoch)", "manual_seed(self.epoch)", "orders"),
    Wrong(
        "an order of its own in each process",
        "manual_seed(self.seed + self.epoch)",
        "manual_seed(self.seed + self.epoch + 1000 * self.rank)",
        "all_examples",
    ),
    Wrong("no padding: one process makes a step more", PADDING, "", "same_number"),
    Wrong("leaving examples out", "-(-self.length // self.world_size)", "self.length // self.world_size", "lengths"),
    Wrong(
        "blocks instead of every world_size-th",
        "order[self.rank :: self.world_size]",
        "order[self.rank * len(self) : (self.rank + 1) * len(self)]",
        "interleaved",
    ),
    Wrong(
        "evaluating on padded data",
        "    return list(range(rank, length, world_size))\n",
        "    share = -(-length // world_size)\n"
        "    return [(rank + step * world_size) % length for step in range(share)]\n",
        "testing",
    ),
]
