"""Mistakes that the checks of two_nodes must reject."""

from exercises.checking import Wrong

HOST = '    return re.sub(r"\\[(\\d+)[^]]*\\]", r"\\1", node_list).split(",")[0]\n'
PORT = "PORTS[int(job) % len(PORTS)]"
EACH = '(int(slurm["SLURM_NTASKS"]) // int(slurm["SLURM_NNODES"]))'
DEVICE = "place.local_rank if gpus > 1 else 0"
SHARE = "range(place.rank, length, place.world_size)"
WHO = "(place.rank if shared else place.local_rank) == 0"
NEW = "    groups = {node: dist.new_group(ranks) for node, ranks in ranks_on.items()}\n"
LEADERS = "    leaders = dist.new_group([ranks[0] for ranks in ranks_on.values()])\n"
REDUCE = "    dist.reduce(tensor, groups.leader, group=groups.node)\n"
AMONG = "    if dist.get_rank() == groups.leader:\n        dist.all_reduce(tensor, group=groups.leaders)\n"
BACK = "    dist.broadcast(tensor, groups.leader, group=groups.node)\n"
RING = "2 * (processes - 1) * num_bytes / processes"
ROUNDS = "2 * (processes - 1) * latency + "
LARGEST = "computing / max(computing, reduce)"

WRONG = [
    Wrong("the list as it is", HOST, "    return node_list\n", "first"),
    Wrong("up to the first comma, in brackets or not", HOST, '    return node_list.split(",")[0]\n', "first"),
    Wrong("what stands in front of the bracket", HOST, '    return node_list.split(",")[0].split("[")[0]\n', "first"),
    Wrong("zeros are lost", 'r"\\[(\\d+)[^]]*\\]", r"\\1"', 'r"\\[0*(\\d+)[^]]*\\]", r"\\1"', "first"),
    Wrong(
        "one bracket alone, and nothing behind it",
        HOST,
        '    found = re.match(r"([^,[]+)(?:\\[(\\d+))?", node_list)\n    return found[1] + (found[2] or "")\n',
        "first",
    ),
    Wrong("a free port of each process's own", PORT, "PORTS[os.getpid() % len(PORTS)]", "port"),
    Wrong("the same port for all jobs", PORT, "29500", "port"),
    Wrong("the job's number as the port", PORT, "int(job)", "port"),
    Wrong("a port that is cut at the end of the range", PORT, "min(PORTS.start + int(job), PORTS.stop - 1)", "port"),
    Wrong("Python's hash, which differs between processes", PORT, "PORTS[hash(job) % len(PORTS)]", "port"),
    Wrong(
        "the number on the node as rank", '"RANK": slurm["SLURM_PROCID"]', '"RANK": slurm["SLURM_LOCALID"]', "variables"
    ),
    Wrong(
        "the node's number times the processes of a node",
        '"RANK": slurm["SLURM_PROCID"]',
        '"RANK": str(int(slurm["SLURM_NODEID"]) * EACH + int(slurm["SLURM_LOCALID"]))'.replace("EACH", EACH),
        "variables",
    ),
    Wrong(
        "the rank, counted from the beginning of the node, as if all were equal",
        '"LOCAL_RANK": slurm["SLURM_LOCALID"]',
        f'"LOCAL_RANK": str(int(slurm["SLURM_PROCID"]) % {EACH})',
        "variables",
    ),
    Wrong("nodes instead of processes", 'slurm["SLURM_NTASKS"]', 'slurm["SLURM_NNODES"]', "variables"),
    Wrong(
        "its own host instead of the first",
        'first_host(slurm["SLURM_JOB_NODELIST"])',
        'slurm["SLURMD_NODENAME"]',
        "variables",
    ),
    Wrong(
        "a port that is a number", 'str(port_of(slurm["SLURM_JOB_ID"]))', 'port_of(slurm["SLURM_JOB_ID"])', "variables"
    ),
    Wrong("reading this machine's variables", 'slurm["SLURM_PROCID"]', 'os.environ["RANK"]', "variables"),
    Wrong("the device by the global rank", DEVICE, "place.rank if gpus > 1 else 0", "device"),
    Wrong("the global rank, wrapped", DEVICE, "place.rank % gpus", "device"),
    Wrong("a GPU that the process does not see", DEVICE, "place.local_rank", "device"),
    Wrong("every process on GPU 0", DEVICE, "0", "device"),
    Wrong("the current GPU of every process", 'torch.device("cuda", ' + DEVICE + ")", 'torch.device("cuda")', "device"),
    Wrong("a GPU where there is none", '    if gpus == 0:\n        return torch.device("cpu")\n', "", "device"),
    Wrong("the share by the number on the node", SHARE, "range(place.local_rank, length, place.world_size)", "shares"),
    Wrong(
        "equal shares, and what remains is left out",
        SHARE,
        "range(place.rank, length // place.world_size * place.world_size, place.world_size)",
        "shares",
    ),
    Wrong(
        "what remains is for the last process",
        f"    return list({SHARE})\n",
        "    each, last = length // place.world_size, place.rank == place.world_size - 1\n"
        "    return list(range(place.rank * each, length if last else (place.rank + 1) * each))\n",
        "shares",
    ),
    Wrong("every node downloads to the same folder", WHO, "place.local_rank == 0", "prepare_shared"),
    Wrong("all processes download", WHO, "True", "prepare_shared"),
    Wrong("only rank 0 downloads", WHO, "place.rank == 0", "prepare_each"),
    Wrong("by the node's number", WHO, "(place.rank if shared else place.rank - place.node) == 0", "prepare_each"),
    Wrong("nobody waits", "        download()\n    dist.barrier()\n", "        download()\n", "prepare_each"),
    Wrong(
        "waiting before the download",
        f"    if {WHO}:\n        download()\n    dist.barrier()\n",
        f"    dist.barrier()\n    if {WHO}:\n        download()\n",
        "prepare_late",
    ),
    Wrong(
        "the barrier in the branch of those who download",
        "        download()\n    dist.barrier()\n",
        "        download()\n        dist.barrier()\n",
        "prepare_shared",
    ),
    Wrong(
        "each process makes its own node's group alone",
        NEW,
        "    groups = {nodes[dist.get_rank()]: dist.new_group(ranks_on[nodes[dist.get_rank()]])}\n",
        "right_groups",
    ),
    Wrong(
        "the leaders alone make their group",
        LEADERS,
        "    leaders = None\n    if any(ranks[0] == dist.get_rank() for ranks in ranks_on.values()):\n"
        "        leaders = dist.new_group([ranks[0] for ranks in ranks_on.values()])\n",
        "right_groups",
    ),
    Wrong(
        "each process makes its own node's group first",
        NEW,
        "    own = nodes[dist.get_rank()]\n"
        "    ordered = sorted(ranks_on, key=lambda node: node != own)\n"
        "    groups = {node: dist.new_group(ranks_on[node]) for node in ordered}\n",
        "right_groups",
    ),
    Wrong(
        "as many on each node, one node after the other",
        "[rank for rank, name in enumerate(nodes) if name == node]",
        "[rank for rank in range(len(nodes)) if sorted(set(nodes))[rank * len(set(nodes)) // len(nodes)] == node]",
        "right_groups",
    ),
    Wrong("the node's number as the leader's rank", "Groups(ranks_on[mine][0],", "Groups(mine,", "right_groups"),
    Wrong("rank 0 is everybody's leader", "Groups(ranks_on[mine][0],", "Groups(0,", "right_groups"),
    Wrong("the sum stays with the leaders", BACK, "", "two_levels"),
    Wrong("no sum on the nodes", REDUCE, "", "two_levels"),
    Wrong("no sum among the leaders", AMONG, "", "two_levels"),
    Wrong("the mean on the nodes", REDUCE, REDUCE + "    tensor /= dist.get_world_size(groups.node)\n", "two_levels"),
    Wrong(
        "all processes of a node add the node's sum",
        REDUCE + AMONG + BACK,
        "    dist.all_reduce(tensor, group=groups.node)\n    dist.all_reduce(tensor)\n",
        "two_levels",
    ),
    Wrong("a new tensor", REDUCE, "    tensor = tensor.clone()\n" + REDUCE, "two_levels"),
    Wrong("the flat sum", REDUCE + AMONG + BACK, "    dist.all_reduce(tensor)\n", "leaders_alone"),
    Wrong(
        "the flat sum, imported by its name",
        REDUCE + AMONG + BACK,
        "    all_reduce(tensor)\n\n\nfrom torch.distributed import all_reduce\n",
        "leaders_alone",
    ),
    Wrong(
        "the flat sum of what the leaders have",
        AMONG + BACK,
        "    if dist.get_rank() != groups.leader:\n        tensor.zero_()\n    dist.all_reduce(tensor)\n",
        "leaders_alone",
    ),
    Wrong("one way alone", RING, "(processes - 1) * num_bytes / processes", "ring"),
    Wrong("the whole tensor in each round", RING, "2 * (processes - 1) * num_bytes", "ring"),
    Wrong("twice the tensor, however many processes", RING, "2 * num_bytes", "ring"),
    Wrong(
        "the ring is open",
        "zip(nodes, nodes[1:] + nodes[:1], strict=True)",
        "zip(nodes, nodes[1:], strict=False)",
        "crossing",
    ),
    Wrong("all hops count", "node != following for", "1 for", "crossing"),
    Wrong("a hop for each node", "crossings * ring_bytes", "len(set(nodes)) * ring_bytes", "crossing"),
    Wrong("the bytes of one process alone", "crossings * ring_bytes", "(crossings > 0) * ring_bytes", "crossing"),
    Wrong("bandwidth alone", ROUNDS, "", "seconds"),
    Wrong("one latency for all rounds", ROUNDS, "latency + ", "seconds"),
    Wrong("half of the rounds", ROUNDS, "(processes - 1) * latency + ", "seconds"),
    Wrong("the tensor's bytes", "ring_bytes(num_bytes, processes) / bandwidth", "num_bytes / bandwidth", "seconds"),
    Wrong("a reduction for each part", "    computing = parts * compute\n", "    computing = compute\n", "bounds"),
    Wrong("more than all", LARGEST, "computing / reduce if reduce else 1.0", "bounds"),
    Wrong("all is hidden in any case", LARGEST, "1.0", "bounds"),
    Wrong(
        "the largest first",
        "computing / (computing + reduce), " + LARGEST,
        LARGEST + ", computing / (computing + reduce)",
        "bounds",
    ),
]
