"""Mistakes that the checks of sampler must reject."""

from exercises.checking import Wrong

PADDING = "islice(cycle(order), len(self) * self.world_size)"
DRAWN = "manual_seed(self.seed + self.epoch)\n        order = torch.randperm(self.length, generator=generator).tolist()"

WRONG = [
    Wrong("no set_epoch", "        sampler.set_epoch(epoch)\n", "", "orders"),
    Wrong("an order that ignores the epoch", "manual_seed(self.seed + self.epoch)", "manual_seed(self.seed)", "orders"),
    *(
        Wrong(
            f"the orders of {number} epochs again and again",
            "manual_seed(self.seed + self.epoch)",
            f"manual_seed(self.seed + self.epoch % {number})",
            "orders",
        )
        for number in (2, 3)
    ),
    Wrong(
        "one order that each epoch shifts",
        DRAWN,
        "manual_seed(self.seed)\n"
        "        order = torch.randperm(self.length, generator=generator).roll(self.epoch).tolist()",
        "orders",
    ),
    Wrong(
        "one order that odd epochs reverse",
        DRAWN,
        "manual_seed(self.seed)\n        order = torch.randperm(self.length, generator=generator).tolist()\n"
        "        order = order[::-1] if self.epoch % 2 else order",
        "orders",
    ),
    Wrong("an order that ignores the seed", "manual_seed(self.seed + self.epoch)", "manual_seed(self.epoch)", "orders"),
    Wrong(
        "an order of its own in each process",
        "manual_seed(self.seed + self.epoch)",
        "manual_seed(self.seed + self.epoch + 1000 * self.rank)",
        "all_examples",
    ),
    Wrong(
        "shifting the order instead of drawing one",
        "torch.randperm(self.length, generator=generator).tolist()",
        "torch.arange(self.length).roll(int(torch.randint(self.length, (), generator=generator))).tolist()",
        "at_random",
    ),
    Wrong("counting epochs from 1", "sampler.set_epoch(epoch)", "sampler.set_epoch(epoch + 1)", "epochs_set"),
    Wrong("no padding: one process makes a step more", PADDING, "order", "same_number"),
    Wrong(
        "padding once, which is not enough for many processes",
        PADDING,
        "order + order[: len(self) * self.world_size - self.length]",
        "same_number",
    ),
    Wrong(
        "the same example again and again",
        PADDING,
        "order + [0] * (len(self) * self.world_size - self.length)",
        "all_examples",
    ),
    Wrong(
        "everybody's random numbers begin again",
        "        generator = torch.Generator().manual_seed(self.seed + self.epoch)\n"
        "        order = torch.randperm(self.length, generator=generator).tolist()\n",
        "        torch.manual_seed(self.seed + self.epoch)\n        order = torch.randperm(self.length).tolist()\n",
        "orders",
    ),
    Wrong("leaving examples out", "-(-self.length // self.world_size)", "self.length // self.world_size", "lengths"),
    Wrong(
        "blocks instead of every world_size-th",
        "islice(whole, self.rank, None, self.world_size)",
        "islice(whole, self.rank * len(self), (self.rank + 1) * len(self))",
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
