"""A job on two nodes: what each process is told, what it does, and what the network between the nodes costs.

python two_nodes.py            plays two nodes on this machine: 2 processes on one, 1 on the other
srun python two_nodes.py job   is the job: `srun` or `torchrun` starts all of its processes
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

PORTS = range(20000, 30000)  # the ports that a job may use


# --- What a process is told ---
class Place(NamedTuple):
    rank: int  # of the process in the whole job
    local_rank: int  # of the process on its node
    node: int
    world_size: int  # processes of the whole job


def first_host(node_list: str) -> str:
    """The name of the first node in a list that Slurm has written.

    `node[08-11,14],gpu3` means node08, node09, node10, node11, node14 and gpu3. Zeros are a part of the name. There can
    be several brackets, and letters after them: the first node of `rack[1-2]-n[01-16].local` is rack1-n01.local.
    """
    # Gap 1
    ### BEGIN SOLUTION
    return re.sub(r"\[(\d+)[^]]*\]", r"\1", node_list).split(",")[0]
    ### END SOLUTION


def port_of(job: str) -> int:
    """A port in PORTS from the job's number: the same in all processes. 10,000 jobs in a row have different ports."""
    # Gap 2
    ### BEGIN SOLUTION
    return PORTS[int(job) % len(PORTS)]
    ### END SOLUTION


def torch_variables(slurm: Mapping[str, str]) -> dict[str, str]:
    """The variables that PyTorch reads: RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR (the first node) and MASTER_PORT.

    `slurm` has SLURM_PROCID (number of the process in the job), SLURM_LOCALID (its number on its node), SLURM_NODEID
    (number of the node), SLURM_NTASKS (processes of the job), SLURM_JOB_NODELIST, SLURM_JOB_ID, and more. Nodes can
    have different numbers of processes. os.environ stays as it is.
    """
    # Gap 3: the values of environment variables are strings.
    ### BEGIN SOLUTION
    return {
        "RANK": slurm["SLURM_PROCID"],
        "LOCAL_RANK": slurm["SLURM_LOCALID"],
        "WORLD_SIZE": slurm["SLURM_NTASKS"],
        "MASTER_ADDR": first_host(slurm["SLURM_JOB_NODELIST"]),
        "MASTER_PORT": str(port_of(slurm["SLURM_JOB_ID"])),
    }
    ### END SOLUTION


# --- What a process does ---
def device_of(place: Place, gpus: int) -> torch.device:
    """The device of a process that sees `gpus` GPUs. Without a GPU it takes the CPU.

    If it sees several GPUs, all processes of its node see them, there are enough for all, and each takes a different
    one. If it sees one GPU, it takes this one: Slurm can show each process its own GPU.
    """
    # Gap 4
    ### BEGIN SOLUTION
    if gpus == 0:
        return torch.device("cpu")
    return torch.device("cuda", place.local_rank if gpus > 1 else 0)
    ### END SOLUTION


def share_of(place: Place, length: int) -> list[int]:
    """The indices of this process's examples. Each example is in one share. Shares differ by at most one example."""
    # Gap 5
    ### BEGIN SOLUTION
    return list(range(place.rank, length, place.world_size))
    ### END SOLUTION


def prepare(place: Place, shared: bool, download: Callable[[], None]) -> None:
    """Calls `download()` once for each folder. When it returns in any process, the data of all nodes are there.

    If `shared`, all nodes see one folder; else each has its own. Any process that sees a folder can download to it.
    """
    # Gap 6: which process downloads, and which processes wait?
    ### BEGIN SOLUTION
    if (place.rank if shared else place.local_rank) == 0:
        download()
    dist.barrier()
    ### END SOLUTION


# --- A sum in two levels ---
class Groups(NamedTuple):
    leader: int  # the smallest rank on this process's node
    node: dist.ProcessGroup  # the processes of its node
    leaders: dist.ProcessGroup  # the leaders of all nodes; only they use it; in other processes it may be anything


def make_groups(nodes: list[int]) -> Groups:
    """The groups of this process. `nodes`: for each rank, the number of its node (in any order, as in 7, 2, 7)."""
    # Gap 7: by default every process must call dist.new_group for every group, in the same order,
    # whether it is in the group or not.
    ### BEGIN SOLUTION
    ranks_on = {node: [rank for rank, name in enumerate(nodes) if name == node] for node in sorted(set(nodes))}
    groups = {node: dist.new_group(ranks) for node, ranks in ranks_on.items()}
    leaders = dist.new_group([ranks[0] for ranks in ranks_on.values()])
    mine = nodes[dist.get_rank()]
    return Groups(ranks_on[mine][0], groups[mine], leaders)
    ### END SOLUTION


def sum_in_two_levels(tensor: torch.Tensor, groups: Groups) -> None:
    """As dist.all_reduce(tensor): puts the sum into `tensor`. But only the leaders exchange data with other nodes."""
    # Gap 8: exchange data on each node, between the leaders, and on each node again.
    ### BEGIN SOLUTION
    dist.reduce(tensor, groups.leader, group=groups.node)
    if dist.get_rank() == groups.leader:
        dist.all_reduce(tensor, group=groups.leaders)
    dist.broadcast(tensor, groups.leader, group=groups.node)
    ### END SOLUTION


# --- What crosses between the nodes, and how long it takes ---
def ring_bytes(num_bytes: float, processes: int) -> float:
    """The bytes that each process sends in a ring all-reduce of `num_bytes`.

    Patarasuk and Yuan (2009): the tensor is cut into a piece for each process. In each round each process sends one
    piece to the next. After processes - 1 rounds the sum of each piece is in one process; after as many again in all.
    """
    return 2 * (processes - 1) * num_bytes / processes


def crossing_bytes(nodes: list[int], num_bytes: float) -> float:
    """All bytes that go from one node to another in a ring: rank r sends to rank r + 1, and the last rank to rank 0."""
    crossings = sum(node != following for node, following in zip(nodes, nodes[1:] + nodes[:1], strict=True))
    return crossings * ring_bytes(num_bytes, len(nodes))


def reduce_seconds(num_bytes: float, processes: int, bandwidth: float, latency: float) -> float:
    """Of a ring all-reduce: `latency` seconds for each round, and the bytes of one process at `bandwidth` bytes/s."""
    return 2 * (processes - 1) * latency + ring_bytes(num_bytes, processes) / bandwidth


def efficiency(compute: float, reduce: float, parts: int) -> tuple[float, float]:
    """The smallest and the largest share of the time in which the devices compute.

    A step computes `parts` parts, each in `compute` seconds, and reduces the gradients once, in `reduce` seconds: after
    the computation (smallest), or at the same time (largest), so that the step ends when both have ended.
    """
    computing = parts * compute
    return computing / (computing + reduce), computing / max(computing, reduce)


# --- The program ---
def my_place() -> Place:
    """From the variables of torchrun, or else from Slurm's. If MASTER_ADDR is set already, it stays."""
    if "RANK" not in os.environ:
        for name, value in torch_variables(os.environ).items():
            os.environ.setdefault(name, value)
    node = os.environ.get("GROUP_RANK") or os.environ["SLURM_NODEID"]
    rank, local_rank, world_size = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    return Place(rank, local_rank, int(node), world_size)


def job() -> None:
    """What each process of the job does. Only rank 0 prints: every node has a local rank 0."""
    place = my_place()
    dist.init_process_group("gloo", timeout=timedelta(minutes=1))
    downloads = []
    prepare(place, True, lambda: downloads.append("shared folder"))
    prepare(place, False, lambda: downloads.append("folder of the node"))
    told = f"rank {place.rank}: node {place.node}, local rank {place.local_rank}, {device_of(place, gpus=2)}, "
    told += f"{len(share_of(place, 1000))} of 1000 examples, downloads to: {' and '.join(downloads) or 'none'}"
    everyone = [None] * place.world_size
    dist.all_gather_object(everyone, (place.node, told))
    groups = make_groups([node for node, _ in everyone])
    tensor = torch.rand(1000, generator=torch.Generator().manual_seed(place.rank))
    flat = tensor.clone()
    dist.all_reduce(flat)
    sum_in_two_levels(tensor, groups)
    difference = (tensor - flat).abs().max()
    dist.all_reduce(difference, dist.ReduceOp.MAX)
    if place.rank == 0:
        print(f"the processes meet at {os.environ['MASTER_ADDR']}, port {os.environ['MASTER_PORT']}")
        print(*(told for _, told in everyone), sep="\n")
        print(f"flat sum and sum in two levels differ by at most {difference:.1e}")
    dist.destroy_process_group()


def start_nodes() -> None:
    """Starts 2 processes as on node 0 and 1 as on node 1, with the variables that Slurm would set."""
    slurm = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NODELIST": "127.0.0.[1-2]", "SLURM_NTASKS": "3"}
    command, processes = [sys.executable, __file__, "job"], []
    for rank, node, local_rank in (("0", "0", "0"), ("1", "0", "1"), ("2", "1", "0")):
        own = {"SLURM_PROCID": rank, "SLURM_NODEID": node, "SLURM_LOCALID": local_rank}
        processes.append(subprocess.Popen(command, env={**os.environ, **slurm, **own}))
    assert [process.wait() for process in processes] == [0, 0, 0], "a process has failed"


def predict() -> None:
    size = 100e6  # bytes: 25 million gradients in float32
    for nodes in ([0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 0, 1, 0, 1, 0, 1], [0, 1]):
        print(f"ring of processes on nodes {nodes}: {crossing_bytes(nodes, size) / 1e6:.0f} MB cross between the nodes")
    for gigabits, parts in ((1, 1), (1, 8), (10, 1), (10, 8), (100, 1), (100, 8)):
        seconds = reduce_seconds(size, processes=2, bandwidth=gigabits * 1e9 / 8, latency=50e-6)
        low, high = efficiency(0.2, seconds, parts)
        told = f"{gigabits:3} Gbit/s: a reduction takes {seconds * 1000:5.1f} ms"
        print(f"{told}, {parts} x 200 ms of computation: efficiency {low:4.0%} to {high:4.0%}")


if __name__ == "__main__":
    if sys.argv[1:] == ["job"]:
        job()
    else:
        start_nodes()
        predict()
