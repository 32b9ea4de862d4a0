"""Checks of two_nodes."""

import functools
import inspect
import os
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
    "n2,n1": "n2",
    "node[007,009-012]": "node007",
    "tux[3],tux[5-6]": "tux3",
    "rack[1-2]-n[01-16].local": "rack1-n01.local",
    "r[12,14-15]c[0-3]n[010-020]": "r12c0n010",
    "cn-2-[17-18],cn-3-[1-9]": "cn-2-17",
    "127.0.0.[1-2]": "127.0.0.1",
}


@check("the first host of a node list is found", "what is in brackets, and what may follow them? is 08 the same as 8?")
def first(work: ModuleType) -> object:
    return [work.first_host(node_list) for node_list in HOSTS]


@first.judge
def _(seen: Any) -> None:
    for (node_list, wanted), found in zip(HOSTS.items(), seen, strict=True):
        hint = "which commas end a name?" if "," in found else ""
        expect(found == wanted, f"{node_list}: the first host: yours {found}, wanted {wanted}", hint)


FIRST_JOBS = (1, 9_990_000, 123_456_780)


@check(
    "the port is the same in all processes, and another one in the next jobs",
    "what do all processes of a job know, and is it different in the next job?",
    ranks=2,
)
def port(work: ModuleType) -> object:
    return [[int(work.port_of(str(first + number))) for number in range(10_000)] for first in FIRST_JOBS]


@port.judge
def _(*ranks: Any) -> None:
    for first, ports, others in zip(FIRST_JOBS, *ranks, strict=True):
        told, hint = f"10,000 jobs from {first} on", "which is the first number of PORTS, and which is the last?"
        lowest, highest, different = min(ports), max(ports), len({*ports})
        inside = lowest >= 20_000 and highest < 30_000
        expect(inside, f"{told}: the ports: yours {lowest} to {highest}, wanted 20000 to 29999", hint)
        expect(ports == others, f"{told}: two processes of a job have ports {ports[0]} and {others[0]}")
        hint = "how many results can your formula have, and for which jobs are they equal?" if different > 1 else ""
        expect(different == 10_000, f"{told}: different ports: yours {different}, wanted 10000", hint)


# For each job the node of each rank, the list of the nodes' names, and the job's number.
JOBS = (
    ([0, 0, 1], "127.0.0.[1-2]", "4711"),
    ([0, 1, 0, 1, 1], "node[08-09]", "31"),
    ([0, 0, 0, 0, 0, 1, 2], "gpu3,node[1-2]", "9"),
)
HINTS = {
    "MASTER_ADDR": "which node's name is the same for all processes?",
    "MASTER_PORT": "from which job's number is it made, and where does that stand?",
}


@check(
    "Slurm's variables become those that PyTorch reads", "which variable counts on the node, which in the whole job?"
)
def variables(work: ModuleType) -> object:
    seen, before = [], dict(os.environ)
    for nodes, node_list, job in JOBS:
        for place in places(work, nodes):
            slurm = {
                "SLURM_PROCID": place.rank,
                "SLURM_LOCALID": place.local_rank,
                "SLURM_NODEID": place.node,
                "SLURM_NTASKS": len(nodes),
                "SLURM_NNODES": len(set(nodes)),
                "SLURM_TASKS_PER_NODE": ",".join(str(nodes.count(node)) for node in sorted(set(nodes))),
                "SLURM_JOB_NODELIST": node_list,
                "SLURM_JOB_ID": job,
                "SLURMD_NODENAME": f"host-of-{place.node}",
            }
            found = work.torch_variables({name: str(value) for name, value in slurm.items()})
            seen.append((dict(found), work.first_host(node_list), str(work.port_of(job))))
    return seen, before == dict(os.environ)


@variables.judge
def _(seen: Any) -> None:
    processes = [(nodes, rank) for nodes, _, _ in JOBS for rank in range(len(nodes))]
    for (nodes, rank), (found, host, port) in zip(processes, seen[0], strict=True):
        told = f"ranks on nodes {nodes}, rank {rank}"
        strings = all(isinstance(value, str) for value in found.values())
        expect(strings, f"{told}: not all values are strings: {found}", "what can os.environ hold?")
        wanted = {"RANK": str(rank), "LOCAL_RANK": str(nodes[:rank].count(nodes[rank])), "WORLD_SIZE": str(len(nodes))}
        for name, value in {**wanted, "MASTER_ADDR": host, "MASTER_PORT": port}.items():
            yours = found.get(name)
            expect(yours == value, f"{told}: {name}: yours {yours!r}, wanted {value!r}", HINTS.get(name, ""))
    expect(seen[1], "the variables of this process are changed", "who sets the variables: torch_variables or my_place?")


# --- Which part is mine ---

# For each job the node of each rank, and how many GPUs each process sees.
VISIBLE = [([0, 0, 1, 1], 2), ([0, 1, 0, 1], 2), ([0, 0, 0, 1, 1], 3), ([0, 1, 1, 1, 1], 8)]
VISIBLE += [(nodes, gpus) for nodes, _ in VISIBLE for gpus in (1, 0)]


@check("each process takes a device of its node", "which GPUs does a process see, and what are their numbers?")
def device(work: ModuleType) -> object:
    return [[str(work.device_of(place, gpus)) for place in places(work, nodes)] for nodes, gpus in VISIBLE]


@device.judge
def _(seen: Any) -> None:
    for (nodes, gpus), devices in zip(VISIBLE, seen, strict=True):
        for node in set(nodes):
            found = [name for name, its_node in zip(devices, nodes, strict=True) if its_node == node]
            found = ["cuda:0" if name == "cuda" else name for name in found]  # no process here sets another one
            allowed = [f"cuda:{number}" for number in range(gpus)] or ["cpu"]
            right = {*found} <= {*allowed} and len({*found}) == (len(found) if gpus > 1 else 1)
            told = f"ranks on nodes {nodes}, each sees {gpus} GPU(s): the devices on node {node}: yours {found}"
            hint = "which number tells the processes of one node apart?" if gpus > 1 else ""
            hint = "who says how many GPUs the process sees: torch, or `gpus`?" if {*found} == {"cpu"} else hint
            expect(right, f"{told}, wanted {'different ones of ' if gpus > 1 else ''}{', '.join(allowed)}", hint)


# For each job the node of each rank, and the number of examples.
SHARED = [(nodes, length) for nodes, gpus in VISIBLE if gpus > 1 for length in (1000, 12, 7, 2)] + [([0], 7)]


@check("each example is in the share of one process", "do all processes cut the same list, and what tells them apart?")
def shares(work: ModuleType) -> object:
    return [[list(map(int, work.share_of(place, length))) for place in places(work, nodes)] for nodes, length in SHARED]


@shares.judge
def _(seen: Any) -> None:
    rest = "how many examples are left over after equal shares, and which processes get them?"
    for (nodes, length), found in zip(SHARED, seen, strict=True):
        told, whole, sizes = f"{length} examples, ranks on nodes {nodes}", sum(found, []), [*map(len, found)]
        twice, left = len(whole) - len(set(whole)), length - len(set(whole))
        expect(not twice, f"{told}: {twice} examples are in two shares", rest if twice < len(nodes) else "")
        complete = sorted(whole) == list(range(length))
        expect(complete, f"{told}: {left} examples are in no share", rest if left < len(nodes) else "")
        expect(max(sizes) - min(sizes) <= 1, f"{told}: the shares have {sizes} examples", rest)


# Whether the folder is shared, and the node of each rank.
DOWNLOADS = ((True, [0, 0, 0, 1]), (False, [0, 0, 0, 1]), (False, [0, 1, 0, 1]), (False, [1, 0, 0, 0]))


@check(
    "one process downloads to each folder, and all wait for all of them",
    "which processes come to the line where they wait?",
    ranks=RANKS,
    seconds=8,
)
def downloads(work: ModuleType) -> object:
    dist.init_process_group("gloo")
    return [prepared(work, shared, nodes, Path(f"job-{case}")) for case, (shared, nodes) in enumerate(DOWNLOADS)]


def prepared(work: ModuleType, shared: bool, nodes: list[int], folder: Path) -> tuple[int, int]:
    """This rank's downloads, and those of all ranks that are done when it goes on."""
    rank, calls, slow = dist.get_rank(), [], 0 if shared else max(map(nodes.index, nodes))
    folder.mkdir(exist_ok=True)
    dist.barrier()

    def download() -> None:
        calls.append(rank)
        deadline = time.monotonic() + 0.3
        while rank == slow and time.monotonic() < deadline and not list(folder.glob("left-*")):
            time.sleep(0.02)  # the others have time to leave, which they must not
        (folder / f"done-{rank}-{len(calls)}").touch()

    work.prepare(places(work, nodes)[rank], shared, download)
    done = len(list(folder.glob("done-*")))
    (folder / f"left-{rank}").touch()
    dist.barrier()
    return len(calls), done


@downloads.judge
def _(*ranks: Any) -> None:
    for (shared, nodes), seen in zip(DOWNLOADS, zip(*ranks, strict=True), strict=True):
        told = f"{'a shared folder' if shared else 'a folder on each node'}, ranks on nodes {nodes}"
        folder_of = [0] * RANKS if shared else nodes
        found = [rank for rank, (calls, _) in enumerate(seen) for _ in range(calls)]
        right = sorted(folder_of[rank] for rank in found) == sorted(set(folder_of))
        hint = "how many processes have rank 0, how many have local rank 0, and how many folders are there?"
        expect(right, f"{told}: the ranks that download: yours {found}, wanted one for each folder", hint)
        done, wanted = [done for _, done in seen], [len(found)] * RANKS
        hint = "which processes wait, when, and for the data of which nodes?"
        expect(done == wanted, f"{told}: downloads done when each rank goes on: yours {done}, wanted {wanted}", hint)


# --- A sum in two levels ---


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
        mine = [groups.node, *([groups.leaders] if rank == nodes.index(nodes[rank]) else [])]
        mine = [group or dist.group.WORLD for group in mine]
        members = [dist.get_process_group_ranks(group) for group in mine]
        seen.append((groups.leader, members, [group.group_name for group in mine]))
        dist.barrier()
    return seen


@right_groups.judge
def _(*ranks: Any) -> None:
    for nodes, seen in zip(LAYOUTS, zip(*ranks, strict=True), strict=True):
        by_name: dict[str, list[int]] = {}
        for rank, (leader, members, names) in enumerate(seen):
            mine = [other for other in range(RANKS) if nodes[other] == nodes[rank]]
            rows = [("the leader", leader, mine[0]), ("the group of its node", sorted(members[0]), mine)]
            if rank == mine[0]:
                rows.append(("the leaders", sorted(members[1]), sorted(nodes.index(node) for node in set(nodes))))
            for name, found, wanted in rows:
                told = f"ranks on nodes {nodes}, rank {rank}: {name}: yours {found}, wanted {wanted}"
                expect(found == wanted, told, "at which places of the list does a node's number stand?")
            # PyTorch names groups by the number of the call. If two have one name, their processes meet only by luck.
            for name, found in zip(names, map(sorted, members), strict=True):
                other = by_name.setdefault(name, found)
                expect(found == other, f"ranks on nodes {nodes}: the same call makes group {other} or {found}")


# What a process calls to exchange tensors.
CALLS = ("all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")
CALLS += ("send", "recv", "isend", "irecv", "all_gather_into_tensor", "reduce_scatter_tensor", "all_gather_object")
NUMBERS = [1000.0**rank for rank in range(RANKS)]  # float32 can't hold their sum


@check(
    "the sum in two levels is the flat sum, and only the leaders exchange something with other nodes",
    "after each of your lines: which process has which sum?",
    ranks=RANKS,
    seconds=8,
)
def two_levels(work: ModuleType) -> object:
    dist.init_process_group("gloo")
    return [summed(work, nodes) for nodes in LAYOUTS]


def summed(work: ModuleType, nodes: list[int]) -> tuple[torch.Tensor, list[tuple[str, list[int]]]]:
    """This rank's tensor after the sum, and what it has called to exchange data, with the ranks that take part."""
    rank, groups, calls = dist.get_rank(), work.make_groups(nodes), []
    tensor = torch.full((2, 3), NUMBERS[rank], dtype=torch.float64)

    def noted(name: str, real: Any, *arguments: Any, **options: Any) -> Any:
        given = inspect.signature(real).bind(*arguments, **options).arguments
        between_two = "send" in name or "recv" in name
        peers = [given[role] for role in ("dst", "src") if given.get(role) is not None]
        group = given.get("group") or dist.group.WORLD
        calls.append((name, [rank, *peers] if between_two else dist.get_process_group_ranks(group)))
        return real(*arguments, **options)

    with ExitStack() as stack:
        for name in CALLS:
            real = getattr(dist, name)
            for module in (dist, work):  # in `work` if it has `from torch.distributed import ...`
                if getattr(module, name, None) is real:
                    stack.enter_context(mock.patch.object(module, name, functools.partial(noted, name, real)))
        work.sum_in_two_levels(tensor, groups)
    dist.barrier()
    return tensor, calls


@two_levels.judge
def _(*ranks: Any) -> None:
    for nodes, seen in zip(LAYOUTS, zip(*ranks, strict=True), strict=True):
        told, wanted = f"1, 1e3, 1e6 and 1e9 on nodes {nodes}: the sums by rank", sum(NUMBERS)
        sums = [tensor[0][0] for tensor, _ in seen]
        hint = "which tensor must have changed at the end?" if sums == NUMBERS else ""
        hint = "in which dtype are the numbers added?" if all(abs(one - wanted) < 1000 for one in sums) else hint
        right = all(tensor == [[wanted] * 3] * 2 for tensor, _ in seen)
        expect(right, f"{told}: yours {sums}, wanted {wanted} in each", hint)
        leaders = {nodes.index(node) for node in set(nodes)}
        for rank, (_, calls) in enumerate(seen):
            told, hint = f"ranks on nodes {nodes}, rank {rank}", "which group does each of your lines use?"
            for name, with_whom in calls:
                inside = len({nodes[other] for other in with_whom}) == 1
                allowed = inside or {*with_whom} <= leaders
                expect(allowed, f"{told}: {name} exchanges data between ranks {with_whom}", hint)
