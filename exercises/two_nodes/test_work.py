"""Checks of two_nodes."""

import time
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

LAYOUTS = ([0, 0, 1, 1], [0, 1, 0, 1], [1, 0, 0, 0], [7, 2, 7, 7])  # for each rank, the number of its node


def places(work, nodes):
    return [work.Place(rank, nodes[:rank].count(node), node, len(nodes)) for rank, node in enumerate(nodes)]


def test_first_host(work):
    """the first host of a node list is found"""
    for node_list, wanted in (
        ("node[08-11,14],gpu3", "node08"),
        ("gpu3,node[08-11,14]", "gpu3"),
        ("tux[3],tux[5-6]", "tux3"),
        ("rack[1-2]-n[01-16].local", "rack1-n01.local"),
        ("127.0.0.[1-2]", "127.0.0.1"),
    ):
        hint = f"{node_list}: what is in brackets, and what may follow them? is 08 the same as 8?"
        assert work.first_host(node_list) == wanted, hint


def test_port(work, ranks):
    """the port is the same in all processes, and another one in the next jobs"""
    ports, others = ranks(lambda: [work.port_of(str(123_456_780 + number)) for number in range(10_000)], 2)
    hint = "smallest, largest and number of ports of 10,000 jobs: how many results can your formula have?"
    assert (min(ports), max(ports), len(set(ports))) == (20_000, 29_999, 10_000), hint
    assert ports[0] == others[0], "ports of two processes of a job: what do all of them know?"


def test_variables(work):
    """Slurm's variables become those that PyTorch reads"""
    for nodes in ([0, 0, 1], [0, 1, 0, 1, 1]):
        for rank, local_rank, node, tasks in places(work, nodes):
            slurm = {"SLURM_PROCID": rank, "SLURM_LOCALID": local_rank, "SLURM_NODEID": node, "SLURM_NTASKS": tasks}
            slurm |= {"SLURM_NNODES": 2, "SLURMD_NODENAME": f"n1{node}", "SLURM_JOB_NODELIST": "n[10-11]"}
            found = work.torch_variables({name: str(value) for name, value in slurm.items()} | {"SLURM_JOB_ID": "4711"})
            wanted = {"RANK": str(rank), "LOCAL_RANK": str(local_rank), "WORLD_SIZE": str(tasks)}
            wanted |= {"MASTER_ADDR": "n10", "MASTER_PORT": str(work.port_of("4711"))}
            hint = f"ranks on nodes {nodes}, rank {rank}: which variable counts on the node, which in the whole job?"
            assert found == wanted, hint


def test_device(work):
    """each process takes a device of its node"""
    for nodes in LAYOUTS:
        mine = [place for place in places(work, nodes) if place.node == nodes[-1]]
        for gpus in (len(mine), 1, 0):
            devices = [work.device_of(place, gpus) for place in mine]
            wanted = [("cuda", number if gpus > 1 else 0) if gpus else ("cpu", 0) for number in range(len(mine))]
            hint = f"ranks on nodes {nodes}, those on the last one's node see {gpus} GPU(s): which numbers have these?"
            assert sorted((device.type, device.index or 0) for device in devices) == wanted, hint


def test_shares(work):
    """each example is in the share of one process"""
    for nodes, length in ((nodes, length) for nodes in (*LAYOUTS, [0, 0, 1]) for length in (1000, 12, 7, 2)):
        shares = [list(work.share_of(place, length)) for place in places(work, nodes)]
        hint = f"{length} examples, ranks on nodes {nodes}: what tells all processes apart? what is left over?"
        assert sorted(map(int, sum(shares, []))) == list(range(length)), hint
        sizes = [len(share) for share in shares]
        assert max(sizes) - min(sizes) <= 1, f"{hint} the shares have {sizes} examples"


def test_downloads(work, ranks):
    """one process downloads to each folder, and all wait for all of them"""
    cases = [(True, LAYOUTS[0]), *((False, nodes) for nodes in LAYOUTS)]

    def look():
        dist.init_process_group("gloo")
        rank, seen = dist.get_rank(), []

        def download():
            time.sleep(0.2)  # the others have time to leave, which they must not
            Path(f"{len(seen)}-{rank}").touch()

        for shared, nodes in cases:
            work.prepare(places(work, nodes)[rank], shared, download)
            seen.append(sorted(int(path.name[-1]) for path in Path().glob(f"{len(seen)}-?")))
            dist.barrier()
        return seen

    for (shared, nodes), seen in zip(cases, zip(*ranks(look, 4))):
        downloaded = sorted(set().union(*seen))
        context = (
            f"{'one folder' if shared else 'one on each node'}, ranks on nodes {nodes}, ranks {downloaded} download"
        )
        folders = sorted(0 if shared else nodes[rank] for rank in downloaded)
        assert folders == sorted({0} if shared else set(nodes)), f"{context}: into which folders? who has rank 0?"
        assert list(seen) == [downloaded] * 4, f"{context}: who is done when each rank goes on? which processes wait?"


def test_groups(work, ranks):
    """every process has its node's group, and the leaders have theirs"""

    def look():
        dist.init_process_group("gloo")
        rank, seen = dist.get_rank(), []
        for nodes in LAYOUTS:
            leader, *groups = work.make_groups(nodes)
            groups = groups if rank == nodes.index(nodes[rank]) else groups[:1]
            seen.append((leader, {group.group_name: sorted(dist.get_process_group_ranks(group)) for group in groups}))
            dist.barrier()
        return seen

    for nodes, seen in zip(LAYOUTS, zip(*ranks(look, 4))):
        named = {}
        for rank, (leader, groups) in enumerate(seen):
            mine = [other for other in range(4) if nodes[other] == nodes[rank]]
            wanted = [mine, sorted(map(nodes.index, set(nodes)))] if rank == mine[0] else [mine]
            context = f"ranks on nodes {nodes}, rank {rank}"
            assert (leader, list(groups.values())) == (mine[0], wanted), (
                f"{context}: the leader, the ranks in each group"
            )
            for name, members in groups.items():  # PyTorch names a group by the number of the call
                hint = f"{context}: a group whose call meets another rank's: do all make the same calls in one order?"
                assert members == named.setdefault(name, members), hint


def test_two_levels(work, ranks):
    """the sum in two levels is the flat sum, and only the leaders exchange something with other nodes"""
    names = ("all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter")

    def add():
        dist.init_process_group("gloo")
        sums, calls = [], {name: mock.Mock(wraps=getattr(dist, name)) for name in names}
        for nodes in LAYOUTS:
            groups, tensor = work.make_groups(nodes), torch.tensor(1000.0 ** dist.get_rank(), dtype=torch.float64)
            with mock.patch.multiple(dist, **calls):
                work.sum_in_two_levels(tensor, groups)
            sums.append(tensor.item())
        given = [(name, (*call.args, *call.kwargs.values())) for name in names for call in calls[name].call_args_list]
        return sums, [name for name, values in given if not any(isinstance(one, dist.ProcessGroup) for one in values)]

    sums, flat = zip(*ranks(add, 4))
    for nodes, *found in zip(LAYOUTS, *sums):
        hint = f"1, 1e3, 1e6, 1e9 on nodes {nodes}, the sums by rank: who has which sum after each of your lines?"
        assert found == [1001001001.0] * 4, hint
    assert list(flat) == [[]] * 4, "each rank's calls without a group: who exchanges data then?"
