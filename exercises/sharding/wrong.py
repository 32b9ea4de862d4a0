"""Mistakes that the checks of sharding must reject."""

from exercises.checking import Wrong

PAD = "F.pad(values, (0, -len(values) % parts))"
SCATTER = "    dist.reduce_scatter_tensor(share, whole)\n"
VELOCITY = "        self.velocity = gradient if self.velocity is None else self.momentum * self.velocity + gradient\n"
GATHER = "self.work = dist.all_gather_into_tensor(self.whole, self.share.detach(), async_op=True)\n"
FORWARD = "        weight, bias = layers[number].finish_gather()\n"
NEXT = "        if number + 1 < len(layers):\n            layers[number + 1].start_gather()\n"
BACKWARD = "        weight, _ = layers[number].finish_gather()\n"
BEFORE = "        if number > 0:\n            layers[number - 1].start_gather()\n"
GRADIENT = "summed_share(flat([gradient.T @ inputs, gradient.sum(dim=0)]))"
ANNOTATED = "            fully_shard(layer, mesh=mesh).set_gradient_divide_factor(1.0)\n"
SHARDED_SENT = "2 * ring_bytes(share * world_size, world_size)"

WRONG = [
    Wrong("cutting off what does not divide", PAD, "values[: len(values) // parts * parts]", "padding"),
    Wrong("padding even if nothing is missing", PAD, "F.pad(values, (0, parts - len(values) % parts))", "padding"),
    Wrong("zeros at the beginning", PAD, "F.pad(values, (-len(values) % parts, 0))", "padding"),
    Wrong("a share of its own numbers, not of the sum", SCATTER, "    share.copy_(share_of(values))\n", "scattered"),
    Wrong(
        "the sum divided by the number of ranks",
        SCATTER,
        "    dist.reduce_scatter_tensor(share, whole, dist.ReduceOp.AVG)\n",
        "scattered",
    ),
    Wrong(
        "the first share in every rank",
        SCATTER,
        "    dist.all_reduce(whole)\n    share.copy_(whole[: len(share)])\n",
        "scattered",
    ),
    Wrong("forgetting the momentum", VELOCITY, "        self.velocity = gradient\n", "sharded_optimizer"),
    Wrong(
        "a velocity of all parameters in every rank",
        VELOCITY + "        share -= self.lr * self.velocity\n",
        "        dist.all_reduce(gradients)\n        gradient = gradients\n"
        + VELOCITY
        + "        share = share_of(weights - self.lr * self.velocity)\n",
        "sharded_optimizer",
    ),
    Wrong(
        "only the own share is updated",
        "        dist.all_gather_into_tensor(gathered, share)\n        write(gathered, self.parameters)\n",
        "        start = dist.get_rank() * len(share)\n"
        "        weights[start : start + len(share)] = share[: len(weights) - start]\n"
        "        write(weights, self.parameters)\n",
        "sharded_optimizer",
    ),
    Wrong(
        "an all-reduce of the gradients, and then an all-gather of the weights",
        "        gradient, share = summed_share(gradients), share_of(weights)\n",
        "        dist.all_reduce(gradients)\n        gradient, share = share_of(gradients), share_of(weights)\n",
        "arithmetic",
    ),
    Wrong(
        "the own share instead of all",
        GATHER,
        GATHER
        + "                self.work.wait()\n"
        + "                self.whole.copy_(self.share.detach().repeat(dist.get_world_size()))\n",
        "forward_pass",
    ),
    Wrong("a gather that waits", GATHER, GATHER + "                self.work.wait()\n", "overlap"),
    Wrong("no gather ahead in forward", FORWARD + NEXT, FORWARD, "overlap"),
    Wrong("no gather ahead in backward", BACKWARD + BEFORE, BACKWARD, "overlap"),
    Wrong(
        "the gather ahead after the layer's computation",
        NEXT + "        context.save_for_backward(inputs)\n        return F.linear(inputs, weight, bias)\n",
        "        context.save_for_backward(inputs)\n        outputs = F.linear(inputs, weight, bias)\n"
        + NEXT
        + "        return outputs\n",
        "overlap",
    ),
    Wrong("the next layer gathered ahead in backward, as in forward", BEFORE, NEXT, "overlap"),
    Wrong(
        "all layers gathered ahead",
        NEXT,
        "        for layer in layers[number + 1 :]:\n            layer.start_gather()\n",
        "freed",
    ),
    Wrong(
        "the whole weights kept for backward",
        FORWARD,
        FORWARD + "        context.weight = weight\n",
        "freed",
    ),
    Wrong(
        "the first layer gathered ahead for the next step, before the optimizer's",
        BEFORE,
        BEFORE + "        else:\n            layers[0].start_gather()\n",
        "freed",
    ),
    Wrong(
        "the weights of the first step in all steps",
        FORWARD,
        "        layer = layers[number]\n        if not hasattr(layer, 'kept'):\n"
        "            layer.kept = layer.finish_gather()\n        weight, bias = layer.kept\n",
        "all_sharded",
    ),
    Wrong(
        "gradients of one rank's examples",
        GRADIENT,
        "share_of(flat([gradient.T @ inputs, gradient.sum(dim=0)]))",
        "all_sharded",
    ),
    Wrong("gradients divided by the number of ranks", GRADIENT, GRADIENT + " / dist.get_world_size()", "all_sharded"),
    Wrong(
        "the bias before the weight",
        GRADIENT,
        "summed_share(flat([gradient.sum(dim=0), gradient.T @ inputs]))",
        "all_sharded",
    ),
    Wrong("the mean of the gradient's rows", GRADIENT, GRADIENT.replace("sum(dim=0)", "mean(dim=0)"), "all_sharded"),
    Wrong(
        "the gradient of the weight transposed",
        GRADIENT,
        GRADIENT.replace("gradient.T @ inputs", "inputs.T @ gradient"),
        "all_sharded",
    ),
    Wrong(
        "fully_shard on the network alone",
        "    for layer in network:\n        if isinstance(layer, nn.Linear):\n"
        + ANNOTATED
        + "    return fully_shard(network, mesh=mesh)\n",
        "    fully_shard(network, mesh=mesh).set_gradient_divide_factor(1.0)\n    return network\n",
        "annotation",
    ),
    Wrong(
        "no fully_shard on the network",
        "    return fully_shard(network, mesh=mesh)\n",
        "    return network\n",
        "annotation",
    ),
    Wrong(
        "the average that fully_shard makes by default",
        ANNOTATED,
        "            fully_shard(layer, mesh=mesh)\n",
        "annotation",
    ),
    Wrong(
        "the factor set for the network alone",
        ANNOTATED + "    return fully_shard(network, mesh=mesh)\n",
        "            fully_shard(layer, mesh=mesh)\n"
        "    fully_shard(network, mesh=mesh).set_gradient_divide_factor(1.0)\n    return network\n",
        "annotation",
    ),
    Wrong(
        "padding once for all layers",
        "    shares = sum(-(-size // world_size) for size in sizes) * itemsize\n",
        "    shares = share\n",
        "arithmetic",
    ),
    Wrong(
        "padding forgotten",
        "-(-sum(sizes) // world_size) * itemsize",
        "sum(sizes) // world_size * itemsize",
        "arithmetic",
    ),
    Wrong(
        "sharded gradients with a sharded optimizer",
        "Costs(whole, whole, share, ",
        "Costs(whole, share, share, ",
        "arithmetic",
    ),
    Wrong("weights gathered once in a step", "3 * ring_bytes(shares", "2 * ring_bytes(shares", "arithmetic"),
    Wrong("a sharded optimizer that sends half", SHARDED_SENT, SHARDED_SENT.replace("2 *", "1 *"), "arithmetic"),
    Wrong(
        "an all-reduce that sends half",
        "2 * ring_bytes(whole, world_size)",
        "ring_bytes(whole, world_size)",
        "arithmetic",
    ),
]
