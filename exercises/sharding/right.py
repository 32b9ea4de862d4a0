"""Other right answers that the checks of sharding must let pass."""

from exercises.checking import Right

FORWARD = """        weight, bias = layers[number].finish_gather()
        if number + 1 < len(layers):
            layers[number + 1].start_gather()
        context.save_for_backward(inputs)
        return F.linear(inputs, weight, bias)
"""
STEP = """        gathered = share.new_empty(len(share) * dist.get_world_size())
        dist.all_gather_into_tensor(gathered, share)
        write(gathered, self.parameters)
"""
GATHER = """                self.whole = self.share.new_empty(len(self.share) * dist.get_world_size())
                self.work = dist.all_gather_into_tensor(self.whole, self.share.detach(), async_op=True)
"""
SCATTER = """    whole = padded(values, dist.get_world_size())
    share = whole.new_empty(len(whole) // dist.get_world_size())
    dist.reduce_scatter_tensor(share, whole)
    return share
"""
BACKWARD = """        share = summed_share(flat([gradient.T @ inputs, gradient.sum(dim=0)]))
        return gradient @ weight, share, None, None
"""

RIGHT = [
    Right(
        "zeros by torch.cat",
        "    return F.pad(values, (0, -len(values) % parts))\n",
        "    missing = -(-len(values) // parts) * parts - len(values)\n"
        "    return torch.cat([values, values.new_zeros(missing)])\n",
    ),
    Right(
        "a reduce-scatter of a list",
        SCATTER,
        """    parts = list(padded(values, dist.get_world_size()).chunk(dist.get_world_size()))
    share = torch.empty_like(parts[0])
    dist.reduce_scatter(share, parts)
    return share
""",
    ),
    Right(
        "a reduction to each rank in turn",
        SCATTER,
        """    parts = padded(values.clone(), dist.get_world_size()).chunk(dist.get_world_size())
    for rank, part in enumerate(parts):
        dist.reduce(part, rank)
    return parts[dist.get_rank()].clone()
""",
    ),
    Right(
        "a broadcast from each rank in turn",
        STEP,
        """        parts = [torch.empty_like(share) for _ in range(dist.get_world_size())]
        parts[dist.get_rank()] = share
        for rank, part in enumerate(parts):
            dist.broadcast(part, src=rank)
        torch.nn.utils.vector_to_parameters(torch.cat(parts)[: len(weights)], self.parameters)
""",
    ),
    Right(
        "a velocity of zeros, updated in place",
        "        self.velocity = gradient if self.velocity is None else self.momentum * self.velocity + gradient\n"
        "        share -= self.lr * self.velocity\n",
        "        if self.velocity is None:\n            self.velocity = torch.zeros_like(share)\n"
        "        self.velocity.mul_(self.momentum).add_(gradient)\n        share.sub_(self.velocity, alpha=self.lr)\n",
    ),
    Right(
        "a gather into the parts of a tensor",
        GATHER,
        """                self.whole = self.share.new_empty(len(self.share) * dist.get_world_size())
                parts = list(self.whole.chunk(dist.get_world_size()))
                self.work = dist.all_gather(parts, self.share.data, async_op=True)
""",
    ),
    Right(
        "both gathers under way before the first wait, and the layer written as a product",
        FORWARD,
        """        layers[number].start_gather()
        if number < len(layers) - 1:
            layers[number + 1].start_gather()
        weight, bias = layers[number].finish_gather()
        context.save_for_backward(inputs)
        return inputs @ weight.T + bias
""",
    ),
    Right(
        "gradients by einsum",
        BACKWARD,
        """        of_inputs = torch.einsum("bo,oi->bi", gradient, weight)
        of_weight = torch.einsum("bo,bi->oi", gradient, inputs)
        share = summed_share(torch.cat([of_weight.reshape(-1), gradient.sum(0)]))
        return of_inputs, share, None, None
""",
    ),
    Right(
        "fully_shard on every child",
        "    for layer in network:\n        if isinstance(layer, nn.Linear):\n"
        "            fully_shard(layer, mesh=mesh).set_gradient_divide_factor(1.0)\n"
        "    return fully_shard(network, mesh=mesh)\n",
        "    for child in network.children():\n        fully_shard(child, mesh=mesh, reshard_after_forward=True)\n"
        "        child.set_gradient_divide_factor(1)\n    fully_shard(network, mesh=mesh)\n    return network\n",
    ),
]
