"""A job on two nodes: what each process is told, which part is its own, and what crosses between the nodes.

python -m exercises.two_nodes.exercise            plays two nodes on this machine, with 2 processes and with 1
srun python -m exercises.two_nodes.exercise job   is one process of a job; `srun` or `torchrun` starts all of them
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

PORTS = range(20000, 30000)  # which this job may use

# --- What a process is told ---


class Place(NamedTuple):
    rank: int  # of the process in the whole job
    local_rank: int  # of the process on its node
    node: int
    world_size: int  # processes of the whole job


def first_host(node_list: str) -> str:
    """The name of the first node in a list as Slurm writes it.

    `node[08-11,14],gpu3` is node08, node09, node10, node11, node14, gpu3; zeros are a part of the name. A name can have
    several brackets, and more letters behind them: `rack[1-2]-n[01-16].local` begins with rack1-n01.local.
    """
    # Gap 1
    raise NotImplementedError("gap 1")


def port_of(job: str) -> int:
    """A port in PORTS, from the job's number: the same in all processes. 10,000 jobs in a row have different ones."""
    # Gap 2
    raise NotImplementedError("gap 2")


def torch_variables(slurm: Mapping[str, str]) -> dict[str, str]:
    """What PyTorch reads (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), from what Slurm has set.

    `slurm`: SLURM_PROCID (number of the process in the job), SLURM_LOCALID (its number on its node), SLURM_NODEID
    (number of the node), SLURM_NTASKS (processes of the job), SLURM_JOB_NODELIST, SLURM_JOB_ID, and more. Nodes may
    have different numbers of processes.
    """
    # Gap 3: the values of environment variables are strings.
    raise NotImplementedError("gap 3")


# --- Which part is mine ---


def device_of(place: Place, gpus: int) -> torch.device:
    """The process's GPU, if it sees as many as its node has processes; or the only one that it sees; else the CPU."""
    # Gap 4
    raise NotImplementedError("gap 4")


def share_of(place: Place, length: int) -> list[int]:
    """The examples of one process: each example is in one share, and shares differ in size by at most one."""
    # Gap 5
    raise NotImplementedError("gap 5")


def prepare(place: Place, shared: bool, download: Callable[[], None]) -> None:
    """Has `download()` called once for each folder. When it returns in any process, the data of all nodes are there.

    `shared`: all nodes see the same folder; else each node has its own.
    """
    # Gap 6: who calls, and who waits?
    raise NotImplementedError("gap 6")


# --- A sum in two levels ---


class Groups(NamedTuple):
    leader: int  # the smallest rank on this process's node
    node: dist.ProcessGroup  # the processes of its node
    leaders: dist.ProcessGroup  # the leaders of all nodes; of no use to the other processes


def make_groups(nodes: list[int]) -> Groups:
    """The groups of this process. `nodes`: for each rank, the number of its node (not always 0, 0, 1, 1)."""
    # Gap 7: all processes must call dist.new_group for all groups, also for those that they are not in, in one order.
    raise NotImplementedError("gap 7")


def sum_in_two_levels(tensor: torch.Tensor, groups: Groups) -> None:
    """Puts the sum over all processes into `tensor`, as dist.all_reduce(tensor) does, in every process.

    Only the leaders exchange something with other nodes.
    """
    # Gap 8: on each node, among the leaders, and back on each node.
    raise NotImplementedError("gap 8")


# --- What crosses between the nodes, and how long it takes ---


def ring_bytes(num_bytes: float, processes: int) -> float:
    """What each process sends in a ring all-reduce of `num_bytes`.

    Patarasuk and Yuan (2009): the tensor is cut into as many pieces as there are processes. In each round each process
    sends one piece to the next process. After processes - 1 rounds every sum is somewhere, and after as many more it is
    everywhere.
    """
    # Gap 9
    raise NotImplementedError("gap 9")


def crossing_bytes(nodes: list[int], num_bytes: float) -> float:
    """What crosses between nodes in a ring all-reduce, together: rank r sends to r + 1, and the last rank to rank 0."""
    # Gap 10: at how many places does the ring leave a node?
    raise NotImplementedError("gap 10")


def reduce_seconds(num_bytes: float, processes: int, bandwidth: float, latency: float) -> float:
    """Of a ring all-reduce: `latency` seconds for each round, and a process's bytes at `bandwidth` bytes a second."""
    # Gap 11
    raise NotImplementedError("gap 11")


def efficiency(compute: float, reduce: float, parts: int) -> tuple[float, float]:
    """The smallest and the largest share of the time in which the devices compute.

    A step computes `parts` parts, each in `compute` seconds, and then reduces the gradients once, in `reduce` seconds.
    Smallest: nothing is computed meanwhile. Largest: the reduction goes on behind all of the computation, and only what
    takes longer is waited for.
    """
    # Gap 12
    raise NotImplementedError("gap 12")


# --- The program ---


def my_place() -> Place:
    """From what torchrun has set, or else Slurm. A MASTER_ADDR that is set already stays."""
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
    downloads = {True: [], False: []}
    for shared, mine in downloads.items():
        prepare(place, shared, lambda mine=mine: mine.append(place.rank))
    everyone = [None] * place.world_size
    dist.all_gather_object(everyone, (place, downloads))
    groups = make_groups([one.node for one, _ in everyone])
    tensor = torch.rand(1000, generator=torch.Generator().manual_seed(place.rank))
    flat = tensor.clone()
    dist.all_reduce(flat)
    sum_in_two_levels(tensor, groups)
    difference = (tensor - flat).abs().max()
    dist.all_reduce(difference, dist.ReduceOp.MAX)
    if place.rank == 0:
        print(f"the processes meet at {os.environ['MASTER_ADDR']}, port {os.environ['MASTER_PORT']}")
        for one, _ in everyone:
            told = f"rank {one.rank}: node {one.node}, local rank {one.local_rank}, device {device_of(one, gpus=2)}"
            print(f"{told} of 2 GPUs, {len(share_of(one, 1000))} of 1000 examples")
        for shared, where in ((True, "a shared folder"), (False, "a folder on each node")):
            print(f"{where}: downloads by rank", *(rank for _, found in everyone for rank in found[shared]))
        print(f"flat sum and sum in two levels differ by at most {difference:.1e}")
    dist.destroy_process_group()


def start_nodes(sizes: list[int]) -> None:
    """Starts a process for each that Slurm would start on nodes with so many, with the variables that it would set."""
    locals_ = [(node, local) for node, size in enumerate(sizes) for local in range(size)]
    processes = []
    for rank, (node, local) in enumerate(locals_):
        slurm = {"PROCID": rank, "LOCALID": local, "NODEID": node, "NTASKS": len(locals_)}
        slurm |= {"JOB_ID": os.getpid(), "JOB_NODELIST": "127.0.0.[1-2]"}  # both are this machine
        variables = os.environ | {f"SLURM_{name}": str(value) for name, value in slurm.items()}
        processes.append(subprocess.Popen([sys.executable, "-m", __spec__.name, "job"], env=variables))
    assert [process.wait() for process in processes] == [0] * len(processes), "a process has failed"


def main() -> None:
    if sys.argv[1:] == ["job"]:
        return job()
    start_nodes([2, 1])
    size = 100e6  # bytes: 25 million gradients in float32
    for name, nodes in (("ring 0 0 0 0 1 1 1 1", [0] * 4 + [1] * 4), ("ring 0 1 0 1 0 1 0 1", [0, 1] * 4)):
        print(f"{name}: {crossing_bytes(nodes, size) / 1e6:.0f} MB cross between the nodes")
    print(f"leaders alone: {crossing_bytes([0, 1], size) / 1e6:.0f} MB")
    print("two nodes, 200 ms a part: efficiency with 1 part a step, and with 8")
    for gigabits in (1, 10, 100):
        seconds = reduce_seconds(size, processes=2, bandwidth=gigabits * 1e9 / 8, latency=50e-6)
        bounds = (efficiency(0.2, seconds, parts) for parts in (1, 8))
        told = "   ".join(f"{low:4.0%} to {high:4.0%}" for low, high in bounds)
        print(f"{gigabits:3} Gbit/s, {seconds * 1000:5.1f} ms a reduction:   {told}")
    return None


if __name__ == "__main__":
    main()
