"""Other right answers that the checks of two_nodes must let pass."""

from exercises.checking import Right

SUM = (
    "    dist.reduce(tensor, groups.leader, group=groups.node)\n"
    "    if dist.get_rank() == groups.leader:\n        dist.all_reduce(tensor, group=groups.leaders)\n"
    "    dist.broadcast(tensor, groups.leader, group=groups.node)\n"
)

RIGHT = [
    Right(
        "a node list letter by letter",
        '    return re.sub(r"\\[(\\d+)[^]]*\\]", r"\\1", node_list).split(",")[0]\n',
        '    host, inside, skipping = "", False, False\n    for letter in node_list:\n'
        '        if letter == "[":\n            inside, skipping = True, False\n'
        '        elif letter == "]":\n            inside = False\n'
        '        elif inside:\n            skipping = skipping or letter in ",-"\n'
        '            host += "" if skipping else letter\n'
        '        elif letter == ",":\n            break\n        else:\n            host += letter\n    return host\n',
    ),
    Right(
        "the job file's port",
        "PORTS[int(job) % len(PORTS)]",
        "20000 + int(job) % 10000",
    ),
    Right(
        "the device wrapped around the GPUs, by name",
        '    return torch.device("cuda", place.local_rank if gpus > 1 else 0)\n',
        '    return torch.device(f"cuda:{place.local_rank % gpus}")\n',
    ),
    Right(
        "the only GPU without its number",
        '    return torch.device("cuda", place.local_rank if gpus > 1 else 0)\n',
        '    return torch.device("cuda", place.local_rank) if gpus > 1 else torch.device("cuda")\n',
    ),
    Right(
        "shares in one piece each",
        "    return list(range(place.rank, length, place.world_size))\n",
        "    first, last = (length * one // place.world_size for one in (place.rank, place.rank + 1))\n"
        "    return torch.arange(first, last).tolist()\n",
    ),
    Right(
        "two branches, and two barriers in all processes",
        "    if (place.rank if shared else place.local_rank) == 0:\n        download()\n    dist.barrier()\n",
        "    if shared and place.rank == 0:\n        download()\n    dist.barrier()\n"
        "    if not shared and place.local_rank == 0:\n        download()\n    dist.barrier()\n",
    ),
    Right(
        "the leaders' group first, all with the ranks in another order of nodes",
        "    groups = {node: dist.new_group(ranks) for node, ranks in ranks_on.items()}\n"
        "    leaders = dist.new_group([ranks[0] for ranks in ranks_on.values()])\n",
        "    leaders = dist.new_group(sorted(min(ranks) for ranks in ranks_on.values()))\n"
        "    groups = {node: dist.new_group(ranks=ranks_on[node]) for node in reversed(list(ranks_on))}\n",
    ),
    Right(
        "the sum on each node in all of its processes, and the leaders' sum gathered",
        SUM,
        "    dist.all_reduce(tensor, group=groups.node)\n"
        "    if dist.get_rank() == groups.leader:\n"
        "        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(groups.leaders))]\n"
        "        dist.all_gather(parts, tensor, group=groups.leaders)\n"
        "        tensor.copy_(torch.stack(parts).sum(dim=0))\n"
        "    dist.broadcast(tensor, src=groups.leader, group=groups.node)\n",
    ),
]
