import time
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

LAYOUTS = ([0, 0, 1, 1], [0, 1, 0, 1], [7, 2, 7, 7])  # for each rank, the number of its node


def places(work, nodes):
    return [work.Place(rank, nodes[:rank].count(node), node, len(nodes)) for rank, node in enumerate(nodes)]


def test_first_host(work):
    """the first host of a node list is found"""
    for node_list, wanted in (
        ("node[08-11,14],gpu3", "node08"),
        ("gpu3,node[08-11,14]", "gpu3"),
        ("tux[3],tux[5-6]", "tux3"),
        ("rack[1-2]-n[01-16].local", "rack1-n01.local"),
    ):
        hint = f"{node_list}: what is in brackets, and what may follow them? is 08 the same as 8?"
        assert work.first_host(node_list) == wanted, hint


def test_port(work):
    """the port is another one in the next jobs"""
    ports = [work.port_of(str(123_456_780 + number)) for number in range(10_000)]
    hint = "smallest, largest and number of ports of 10,000 jobs: how many results can your formula have?"
    assert (min(ports), max(ports), len(set(ports))) == (20_000, 29_999, 10_000), hint


def test_variables(work):
    """Slurm's variables become those that PyTorch reads"""
    slurm = {"SLURM_PROCID": "4", "SLURM_LOCALID": "2", "SLURM_NODEID": "1", "SLURM_NTASKS": "5", "SLURM_NNODES": "2"}
    slurm |= {"SLURMD_NODENAME": "n11", "SLURM_JOB_NODELIST": "n[10-11]", "SLURM_JOB_ID": "4711"}
    wanted = {"RANK": "4", "LOCAL_RANK": "2", "WORLD_SIZE": "5", "MASTER_ADDR": "n10"}
    hint = f"{slurm}: which variable counts on the node, which in the whole job?"
    assert work.torch_variables(slurm) == {**wanted, "MASTER_PORT": str(work.port_of("4711"))}, hint


def test_device(work):
    """each process takes a device of its node"""
    for gpus, wanted in ((3, [("cuda", 0), ("cuda", 1), ("cuda", 2)]), (1, [("cuda", 0)] * 3), (0, [("cpu", 0)] * 3)):
        devices = [work.device_of(place, gpus) for place in places(work, [7, 2, 7, 7]) if place.node == 7]
        found = sorted((device.type, device.index or 0) for device in devices)
        assert found == wanted, f"ranks 0, 2 and 3 are on a node and see {gpus} GPU(s): which numbers have these?"


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
        told = f"{'one folder' if shared else 'one on each node'}, ranks on nodes {nodes}, ranks {downloaded} download"
        folders = sorted(0 if shared else nodes[rank] for rank in downloaded)
        assert folders == sorted({0} if shared else set(nodes)), f"{told}: into which folders? who has rank 0?"
        assert list(seen) == [downloaded] * 4, f"{told}: who is done when each rank goes on? which processes wait?"


def test_groups(work, ranks):
    """every process has its node's group, and the leaders have theirs"""

    def look():
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
            told = f"ranks on nodes {nodes}, rank {rank}"
            assert (leader, list(groups.values())) == (mine[0], wanted), f"{told}: the leader, the ranks in each group"
            for name, members in groups.items():  # PyTorch names a group by the number of the call
                hint = f"{told}: a group whose call meets another rank's: do all make the same calls in one order?"
                assert members == named.setdefault(name, members), hint


def test_two_levels(work, ranks):
    """the sum in two levels is the flat sum, and only the leaders exchange something with other nodes"""

    def add():
        sums = []
        for nodes in LAYOUTS:
            groups, tensor = work.make_groups(nodes), torch.tensor(1000.0 ** dist.get_rank(), dtype=torch.float64)
            with mock.patch.object(dist, "all_reduce", wraps=dist.all_reduce) as reduce:
                work.sum_in_two_levels(tensor, groups)
            flat = [call for call in reduce.call_args_list if "ProcessGroup" not in str(call)]
            assert flat == [], "all_reduce without a group: who exchanges data then?"
            sums.append(tensor.item())
        return sums

    for nodes, *found in zip(LAYOUTS, *ranks(add, 4)):
        hint = f"1, 1e3, 1e6, 1e9 on nodes {nodes}, the sums by rank: who has which sum after each of your lines?"
        assert found == [1001001001.0] * 4, hint
