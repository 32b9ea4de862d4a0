"""Checks of two_nodes."""

import functools
import inspect
import math
import time
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from exercises.checking import check, expect

RANKS = 4
# For each rank, the number of its node.
LAYOUTS = ([0, 0, 1, 1], [0, 0, 0, 1], [0, 1, 0, 1], [1, 0, 0, 0], [0, 1, 2, 3], [0, 0, 0, 0], [7, 2, 7, 7])


def places(work: ModuleType, nodes: list[int]) -> list[Any]:
    """The places of all ranks of a job. `nodes`: for each rank, the number of its node."""
    return [work.Place(rank, nodes[:rank].count(node), node, len(nodes)) for rank, node in enumerate(nodes)]


# --- What a process is told ---


HOSTS = {
    "node[08-11,14],gpu3": "node08",
    "gpu3,node[08-11,14]": "gpu3",
    "n1": "n1",
    "n2,n1": "n2",
    "node[8-11]": "node8",
    "node[007,009-012]": "node007",
    "tux[3],tux[5-6]": "tux3",
    "rack[1-2]-n[01-16].local": "rack1-n01.local",
    "r[12,14-15]c[0-3]n[010-020]": "r12c0n010",
    "cn-2-[17-18],cn-3-[1-9]": "cn-2-17",
    "a[5-6]-ib,b[1,3]-ib": "a5-ib",
    "127.0.0.[1-2]": "127.0.0.1",
    "gpu[0-1]": "gpu0",
}


@check("the first host of a node list is found", "what is in brackets, and what may follow them? is 08 the same as 8?")
def first(work: ModuleType) -> object:
    return [work.first_host(node_list) for node_list in HOSTS]


@first.judge
def _(seen: Any) -> None:
    for (node_list, wanted), found in zip(HOSTS.items(), seen, strict=True):
        expect(found == wanted, f"{node_list}: the first host: yours {found}, wanted {wanted}")


FIRST_JOBS = (1, 4711, 9_990_000, 123_456_780)


@check(
    "the port is the same in all processes, and another one in the next jobs",
    "what do all processes of a job know, and is it different in the next job?",
)
def port(work: ModuleType) -> object:
    twice = [
        [[int(work.port_of(str(start + number))) for number in range(10_000)] for start in FIRST_JOBS] for _ in range(2)
    ]
    return min(work.PORTS), max(work.PORTS), *twice


@port.judge
def _(seen: Any) -> None:
    lowest, highest, once, twice = seen
    for start, ports, again in zip(FIRST_JOBS, once, twice, strict=True):
        outside = [port for port in ports if not lowest <= port <= highest]
        expect(not outside, f"of jobs from {start} on, port {(outside or [0])[0]} is outside of PORTS")
        different = len(set(ports))
        expect(different == 10_000, f"10,000 jobs from {start} on have {different} different ports")
        expect(ports == again, "asked twice for the same job, it gives two ports")


# For each job the node of each rank, the list of the nodes' names, and the job's number.
JOBS = (
    ([0, 0, 1], "127.0.0.[1-2]", "4711"),
    ([0, 1, 0, 1, 1], "node[08-09]", "31"),
    ([0, 0, 0, 0, 0, 1, 2], "gpu3,node[1-2]", "9"),
)


@check(
    "Slurm's variables become those that PyTorch reads", "which variable counts on the node, which in the whole job?"
)
def variables(work: ModuleType) -> object:
    seen = []
    for nodes, node_list, job in JOBS:
        for place in places(work, nodes):
            slurm = {
                "SLURM_PROCID": place.rank,
                "SLURM_LOCALID": place.local_rank,
                "SLURM_NODEID": place.node,
                "SLURM_NTASKS": len(nodes),
                "SLURM_JOB_NUM_NODES": len(set(nodes)),
                "SLURM_NNODES": len(set(nodes)),
                "SLURM_TASKS_PER_NODE": ",".join(str(nodes.count(node)) for node in sorted(set(nodes))),
                "SLURM_JOB_NODELIST": node_list,
                "SLURM_JOB_ID": job,
                "SLURM_STEP_ID": 0,
                "SLURMD_NODENAME": f"host-of-{place.node}",
                "PATH": "/usr/bin",
            }
            found = work.torch_variables({name: str(value) for name, value in slurm.items()})
            place_of = place.rank, place.local_rank, place.node, len(nodes)
            seen.append((place_of, dict(found), work.first_host(node_list), str(work.port_of(job))))
    return seen


@variables.judge
def _(seen: Any) -> None:
    expect(len(seen) == sum(len(nodes) for nodes, _, _ in JOBS), "not all processes were told their variables")
    for (rank, local_rank, node, count), found, host, port in seen:
        expect(all(isinstance(value, str) for value in found.values()), f"not all values are strings: {found}")
        wanted = {"RANK": str(rank), "LOCAL_RANK": str(local_rank), "WORLD_SIZE": str(count)}
        for name, value in {**wanted, "MASTER_ADDR": host, "MASTER_PORT": port}.items():
            told = f"process {rank} of {count}, the {local_rank}th on node {node}"
            expect(found.get(name) == value, f"{told}: {name}: yours {found.get(name)!r}, wanted {value!r}")


# --- Which part is mine ---


@check("the device is chosen by the number on the node", "which numbers do the GPUs have that a process sees?")
def device(work: ModuleType) -> object:
    seen = []
    for nodes in ([0, 0, 1, 1], [0, 0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 1, 1]):
        for place in places(work, nodes):
            for gpus in (nodes.count(place.node), 1, 8, 0):
                found = str(torch.device(work.device_of(place, gpus)))
                seen.append(((place.rank, place.local_rank, place.node), gpus, found))
    return seen


@device.judge
def _(seen: Any) -> None:
    expect(len(seen) == 4 * (4 + 5 + 4 + 5), "not all devices were chosen")
    for (rank, local_rank, node), gpus, device in seen:
        wanted = f"cuda:{local_rank if gpus > 1 else 0}" if gpus else "cpu"
        found = "cuda:0" if device == "cuda" else device  # no process here sets another one
        told = f"rank {rank}, local rank {local_rank}, node {node}"
        expect(found == wanted, f"{told}, which sees {gpus} GPU(s): the device: yours {found}, wanted {wanted}")


# For each job the node of each rank, and the number of examples.
SHARED = [
    (nodes, length)
    for nodes in ([0, 0, 1, 1], [0, 0, 1], [0, 1, 1, 1, 1], [0, 1, 0, 1, 0], [0], [0, 0, 0, 0, 1, 2])
    for length in (1000, 12, 7, 2)
]


@check("each example is in the share of one process", "which number is different in all processes of the job?")
def shares(work: ModuleType) -> object:
    return [[list(map(int, work.share_of(place, length))) for place in places(work, nodes)] for nodes, length in SHARED]


@shares.judge
def _(seen: Any) -> None:
    for (nodes, length), found in zip(SHARED, seen, strict=True):
        told = f"{length} examples, ranks on nodes {nodes}"
        whole = sorted(index for share in found for index in share)
        twice = len(whole) - len(set(whole))
        expect(not twice, f"{told}: {twice} examples are in two shares")
        expect(whole == list(range(length)), f"{told}: {length - len(whole)} examples are in no share")
        sizes = [len(share) for share in found]
        expect(max(sizes) - min(sizes) <= 1, f"{told}: the shares have {sizes} examples")


def prepared(work: ModuleType, shared: bool, slow: int) -> list[tuple[list[int], list[int]]]:
    """On several layouts: this rank's downloads, and those done when it goes on. `slow`: the rank that is slow."""
    dist.init_process_group("gloo")
    rank, seen = dist.get_rank(), []
    for case, nodes in enumerate(LAYOUTS[1:5]):
        calls: list[int] = []
        done, left = Path(f"done-{shared}-{case}"), f"left-{shared}-{case}"
        done.mkdir(exist_ok=True)
        dist.barrier()

        def download(calls: list[int] = calls, left: str = left, done: Path = done) -> None:
            calls.append(rank)
            deadline = time.monotonic() + 0.3
            while rank == slow and time.monotonic() < deadline and not list(Path().glob(f"{left}-*")):
                time.sleep(0.02)  # the others have time to leave, which they must not
            (done / str(rank)).touch()

        work.prepare(places(work, nodes)[rank], shared, download)
        there = sorted(int(path.name) for path in done.iterdir())
        Path(f"{left}-{rank}").touch()
        seen.append((calls, there))
        dist.barrier()
    return seen


def expect_prepared(ranks: Any, shared: bool) -> None:
    for nodes, seen in zip(LAYOUTS[1:5], zip(*ranks, strict=True), strict=True):
        wanted = [0] if shared else sorted(nodes.index(node) for node in set(nodes))
        found = sorted(sum((calls for calls, _ in seen), []))
        where = "a shared folder" if shared else "a folder on each node"
        told = f"{where}, ranks on nodes {nodes}"
        expect(found == wanted, f"{told}: the ranks that download: yours {found}, wanted {wanted}")
        expect(all(there == wanted for _, there in seen), f"{told}: a process went on before all data were there")


@check(
    "a shared folder: rank 0 downloads, all wait",
    "how many processes have local rank 0? which processes come to the line where they wait?",
    ranks=RANKS,
    seconds=8,
)
def prepare_shared(work: ModuleType) -> object:
    return prepared(work, shared=True, slow=0)


@prepare_shared.judge
def _(*ranks: Any) -> None:
    expect_prepared(ranks, shared=True)


@check(
    "a folder on each node: one process of each downloads, all wait",
    "which local rank does every node have? which processes read the data of node 1?",
    ranks=RANKS,
    seconds=8,
)
def prepare_each(work: ModuleType) -> object:
    return prepared(work, shared=False, slow=0)


@prepare_each.judge
def _(*ranks: Any) -> None:
    expect_prepared(ranks, shared=False)


@check(
    "all processes wait for the last node's download",
    "is a node ready when its own data are there?",
    ranks=RANKS,
    seconds=8,
)
def prepare_late(work: ModuleType) -> object:
    return prepared(work, shared=False, slow=RANKS - 1)


@prepare_late.judge
def _(*ranks: Any) -> None:
    expect_prepared(ranks, shared=False)


# --- A sum in two levels ---

SHAPES = ((5,), (2, 3))


@check(
    "every process has its node's group, and the leaders have theirs",
    "does every process make the same calls of new_group in the same order?",
    ranks=RANKS,
    seconds=8,
)
def right_groups(work: ModuleType) -> object:
    dist.init_process_group("gloo")
    rank, seen = dist.get_rank(), []
    for nodes in LAYOUTS:
        groups = work.make_groups(nodes)
        leaders = dist.get_process_group_ranks(groups.leaders) if rank == nodes.index(nodes[rank]) else None
        seen.append((groups.leader, dist.get_process_group_ranks(groups.node), leaders))
        dist.barrier()
    return seen


@right_groups.judge
def _(*ranks: Any) -> None:
    for rank, seen in enumerate(ranks):
        for nodes, (leader, node, of_leaders) in zip(LAYOUTS, seen, strict=True):
            mine = [other for other in range(RANKS) if nodes[other] == nodes[rank]]
            leaders = sorted(nodes.index(node) for node in set(nodes))
            told = f"ranks on nodes {nodes}, rank {rank}"
            expect(leader == mine[0], f"{told}: the leader: yours {leader}, wanted {mine[0]}")
            expect(
                sorted(node) == mine, f"{told}: the ranks of the group of its node: yours {sorted(node)}, wanted {mine}"
            )
            if rank == mine[0]:
                found = sorted(of_leaders)
                expect(
                    found == leaders, f"{told}: the ranks of the group of the leaders: yours {found}, wanted {leaders}"
                )


@check(
    "the sum in two levels is the flat sum, in every process",
    "after each of your lines: which process has which sum?",
    ranks=RANKS,
    seconds=8,
)
def two_levels(work: ModuleType) -> object:
    dist.init_process_group("gloo")
    rank, seen = dist.get_rank(), []
    for nodes in LAYOUTS:
        groups = work.make_groups(nodes)
        for shape in SHAPES:
            tensor = torch.full(shape, 10.0**rank, dtype=torch.float64)
            work.sum_in_two_levels(tensor, groups)
            seen.append(tensor.flatten())
        dist.barrier()
    return seen


@two_levels.judge
def _(*ranks: Any) -> None:
    cases = [(nodes, shape) for nodes in LAYOUTS for shape in SHAPES]
    for (nodes, shape), sums in zip(cases, zip(*ranks, strict=True), strict=True):
        wanted = ([1111.0] * math.prod(shape),) * RANKS
        expect(sums == wanted, f"1, 10, 100 and 1000 on nodes {nodes}: by rank {[of_rank[0] for of_rank in sums]}")


# What a process calls to exchange tensors, with the name of the argument that says with whom.
CALLS = ("all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")
CALLS += ("send", "recv", "isend", "irecv", "all_gather_into_tensor", "reduce_scatter_tensor", "all_gather_object")


@check(
    "only the leaders exchange something with other nodes",
    "which group does each of your lines use, and is it on one node?",
    ranks=RANKS,
    seconds=8,
)
def leaders_alone(work: ModuleType) -> object:
    dist.init_process_group("gloo")
    rank, seen = dist.get_rank(), []
    for nodes in LAYOUTS[:5]:
        groups = work.make_groups(nodes)
        with_whom: list[tuple[str, list[int]]] = []

        def noted(name: str, real: Any, *arguments: Any, _to: list = with_whom, **options: Any) -> Any:
            given = inspect.signature(real).bind(*arguments, **options).arguments
            peers = [given[role] for role in ("dst", "src") if given.get(role) is not None]
            if "send" in name or "recv" in name:
                _to.append((name, sorted({rank, *peers})))
            else:
                _to.append((name, dist.get_process_group_ranks(given.get("group") or dist.group.WORLD)))
            return real(*arguments, **options)

        tensor = torch.ones(3)
        with ExitStack() as stack:
            for name in CALLS:
                real = getattr(dist, name)
                for module in (dist, work):  # in `work` if it has `from torch.distributed import ...`
                    if getattr(module, name, None) is real:
                        stack.enter_context(mock.patch.object(module, name, functools.partial(noted, name, real)))
            work.sum_in_two_levels(tensor, groups)
        seen.append(with_whom)
        dist.barrier()
    return seen


@leaders_alone.judge
def _(*everyone: Any) -> None:
    for rank, seen in enumerate(everyone):
        for nodes, with_whom in zip(LAYOUTS[:5], seen, strict=True):
            leaders = {nodes.index(node) for node in set(nodes)}
            told = f"ranks on nodes {nodes}, rank {rank}"
            for name, ranks in with_whom:
                inside = len({nodes[rank] for rank in ranks}) == 1
                expect(inside or set(ranks) <= leaders, f"{told}: {name} exchanges data between ranks {ranks}")
            between = [ranks for _, ranks in with_whom if len({nodes[rank] for rank in ranks}) > 1]
            if rank in leaders and with_whom:  # else it calls what is not watched
                expect(bool(between), f"{told}: a leader exchanges nothing with the other leaders")
