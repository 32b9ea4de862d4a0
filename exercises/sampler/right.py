"""Other right answers that the checks of sampler must let pass."""

from exercises.checking import Right

RIGHT = [
    Right(
        "indices that are tensors",
        "        whole = islice(cycle(order), len(self) * self.world_size)\n"
        "        return islice(whole, self.rank, None, self.world_size)\n",
        "        whole = torch.tensor(order).repeat(self.world_size)[: len(self) * self.world_size]\n"
        "        return iter(whole[self.rank :: self.world_size])\n",
    ),
]
