"""Where the processes of a run find each other, when a launcher has started them on one machine or several."""

import os
import socket
import subprocess
import sys
from functools import cache

import psutil

from common.platform.errors import UserError
from common.platform.launch import Launch, read_tf_config

LOOPBACK = "127.0.0.1"
FIRST_PORT, NUM_PORTS = 15000, 15000  # what Slurm's jobs take, by their number: below those of outgoing connections
INSTALL_MPI = "pip install -r requirements-mpi.txt -c constraints.txt"


@cache
def find_rendezvous(launch: Launch) -> tuple[str, int]:
    """Host and port at which the first process of the run listens.

    MASTER_ADDR and MASTER_PORT, where they are set; of Slurm's steps the first node and a port that is the job's; of
    Open MPI's what the processes tell each other by MPI.

    Raises:
      UserError: nobody tells.
    """
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if host and port:
        if not port.isdecimal() or not 0 < int(port) < 2**16:
            raise UserError(f"MASTER_PORT {port}: this variable of the environment should be a port, 1 to 65535")
        return host, int(port)
    return addresses(launch)[0]


@cache
def addresses(launch: Launch) -> list[tuple[str, int]]:
    """Host and port of each process of the run, in the order of their ranks.

    Raises:
      UserError: a launcher that doesn't tell one process of the others.
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
    names = _scontrol("show", "hostnames", nodes).split()
    # Where Slurm itself reaches a node, whose name need not be one of the network's.
    told = dict(_node(line) for line in _scontrol("--oneliner", "show", "nodes", nodes).splitlines())
    hosts = [told[name] for name in names if name in told]
    if len(hosts) != launch.num_nodes:
        raise UserError(f"SLURM_STEP_NODELIST {nodes}: scontrol does not say where these nodes are")
    assert launch.world_size is not None and launch.local_world_size is not None
    # Of a job, its steps and its processes each has another one; where several nodes are one machine, too.
    first = int(os.environ["SLURM_JOB_ID"]) * 97 + int(os.environ["SLURM_STEP_ID"]) * 31
    return [
        (hosts[rank // launch.local_world_size], FIRST_PORT + (first + rank) % NUM_PORTS)
        for rank in range(launch.world_size)
    ]


def _scontrol(*words: str) -> str:
    """What it says; nothing where it fails."""
    try:
        return subprocess.run(["scontrol", *words], capture_output=True, text=True).stdout
    except OSError:
        return ""


def _node(line: str) -> tuple[str, str]:
    """Name and address, of `NodeName=n1 Arch=x86_64 ... NodeAddr=10.0.0.1 ...`."""
    fields = dict(word.partition("=")[::2] for word in line.split() if "=" in word)
    return fields.get("NodeName", ""), fields.get("NodeAddr", "")


def _of_mpi(launch: Launch) -> list[tuple[str, int]]:
    """By an exchange over MPI, which is then left again: the frameworks have their own ways to talk."""
    try:
        import mpi4py
    except ImportError:
        raise UserError(
            f"mpirun has started {launch.world_size} processes, which find each other with mpi4py: {INSTALL_MPI}"
        ) from None
    mpi4py.rc.initialize = False
    from mpi4py import MPI

    MPI.Init()
    with socket.create_server(("", 0)) as listener:
        own = MPI.Get_processor_name(), listener.getsockname()[1]
        found = MPI.COMM_WORLD.allgather(own)
    MPI.Finalize()
    return [(str(host), int(port)) for host, port in found]


# --- Networks ---


def find_interface(num_nodes: int) -> str | None:
    """Name of the network interface on which this machine's processes and other nodes' reach each other, `eth0`.

    Of one node the loopback interface; of several the one on the way to MASTER_ADDR. None where that can't be told.
    """
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    if num_nodes == 1:
        return loopback
    found = _interface_towards(os.environ.get("MASTER_ADDR", ""))
    if found not in (None, loopback):
        return found
    # The first node's own name often stands for its loopback address, which the others can't reach.
    others = [name for name, up in psutil.net_if_stats().items() if up.isup and name != loopback]
    others = [name for name in others if _addresses_of(name)]
    return others[0] if len(others) == 1 else loopback if not others else None


def _interface_towards(host: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # sends nothing: the system only chooses its own address
        except OSError:
            return None
        own = probe.getsockname()[0]
    return next((name for name in psutil.net_if_addrs() if own in _addresses_of(name)), None)


def _addresses_of(name: str) -> list[str]:
    return [one.address for one in psutil.net_if_addrs().get(name, ()) if one.family == socket.AF_INET]
