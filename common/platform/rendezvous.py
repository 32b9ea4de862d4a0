"""The addresses at which the processes of a run find each other, if a launcher has started them."""

import os
import re
import socket
import subprocess
import sys
from contextlib import suppress
from functools import cache

import psutil

from common.platform.errors import UserError
from common.platform.launch import Launch, read_tf_config

LOOPBACK = "127.0.0.1"
FIRST_PORT, NUM_PORTS = 15000, 15000  # ports for Slurm, chosen by the job id; below those of outgoing connections


@cache
def find_rendezvous(launch: Launch) -> tuple[str, int]:
    """Host and port at which the first process of the run listens; LOOPBACK if all processes are on one node.

    These are MASTER_ADDR and MASTER_PORT, if both are set, otherwise the first of `addresses`.
    """
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    meeting = (host, int(port)) if host and port else addresses(launch)[0]
    return (LOOPBACK, meeting[1]) if launch.num_nodes == 1 else meeting


@cache
def addresses(launch: Launch) -> list[tuple[str, int]]:
    """Host and port of each process of the run, in the order of their ranks.

    TF_CONFIG names them. With Slurm they are the nodes and ports computed from the job id; with Open MPI the processes
    exchange them. Raises UserError if the launcher does not tell a process the addresses of the others.
    """
    if launch.started_by == "TF_CONFIG":
        return read_tf_config(os.environ["TF_CONFIG"])[0]
    if launch.started_by == "Slurm":
        return _of_slurm(launch)
    if launch.started_by == "Open MPI":
        return _of_mpi(launch)
    raise UserError(
        f"{launch.started_by} does not tell its processes of each other; srun, mpirun and TF_CONFIG do (docs/nodes.md)"
    )


def _of_slurm(launch: Launch) -> list[tuple[str, int]]:
    nodes = os.environ["SLURM_STEP_NODELIST"]
    shown, names = "", ""
    with suppress(OSError):
        shown, names = (
            subprocess.run(["scontrol", *words], capture_output=True, text=True).stdout
            for words in (["--oneliner", "show", "nodes", nodes], ["show", "hostnames", nodes])
        )
    # Addresses at which Slurm reaches the nodes; a node's name in Slurm need not be a host name in the network.
    address_of = dict(re.findall(r"^NodeName=(\S+).*? NodeAddr=(\S+)", shown, re.MULTILINE))
    hosts = [address_of[name] for name in names.split() if name in address_of]
    if len(hosts) != launch.num_nodes:
        raise UserError(f"SLURM_STEP_NODELIST {nodes}: scontrol does not say where these nodes are")
    assert launch.world_size is not None and launch.local_world_size is not None
    # Jobs, their steps and their processes have different ports, since several nodes may be one machine.
    first = int(os.environ["SLURM_JOB_ID"]) * 97 + int(os.environ["SLURM_STEP_ID"]) * 31
    return [
        (hosts[rank // launch.local_world_size], FIRST_PORT + (first + rank) % NUM_PORTS)
        for rank in range(launch.world_size)
    ]


def _of_mpi(launch: Launch) -> list[tuple[str, int]]:
    """Exchanges the addresses over MPI, then leaves MPI, since the frameworks communicate in their own ways."""
    try:
        from mpi4py import MPI
    except ImportError:
        raise UserError(
            f"mpirun has started {launch.world_size} processes, which find each other with mpi4py:"
            " pip install -r requirements/mpi.txt -c constraints.txt"
        ) from None
    with socket.create_server(("", 0)) as listener:
        own = MPI.Get_processor_name(), listener.getsockname()[1]
        gathered = MPI.COMM_WORLD.allgather(own)
    MPI.Finalize()
    return [(str(host), int(port)) for host, port in gathered]


def find_interface(num_nodes: int) -> str | None:
    """Name of the network interface through which processes of this and other nodes communicate, such as `eth0`.

    With one node it is the loopback interface; with several, the interface towards MASTER_ADDR. None if it is unknown.
    """
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    if num_nodes == 1:
        return loopback
    up = {name for name, state in psutil.net_if_stats().items() if state.isup} - {loopback}
    own = [(name, address) for name, found in psutil.net_if_addrs().items() if name in up for address in found]
    name_of = {address.address: name for name, address in own if address.family == socket.AF_INET}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect((os.environ.get("MASTER_ADDR", ""), 9))  # sends nothing, but chooses this machine's own address
        if (towards := probe.getsockname()[0]) in name_of:
            return name_of[towards]
    # The first node's own name often resolves to its loopback address, which other nodes can't reach.
    others = {*name_of.values()}
    return loopback if not others else others.pop() if len(others) == 1 else None
