"""The place of this process in its run (rank, world size, node), from environment variables that launchers set."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from common.platform.errors import UserError

# The environment variable that names the process of this project that started this one, `PID@HOST`: `end_with_starter`.
STARTED_BY = "STARTED_BY_PROCESS"

# How the names of environment variables begin that launchers set for the processes that they start.
LAUNCHER_PREFIXES = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_", "TF_CONFIG", "OMPI_", "PMIX_"),
    *("SLURM_STEP", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
)
LARGEST_STEP = 0xFFFFFFF0  # Slurm's step ids from here on mean a job's own script, a shell, ...: not a step of srun

Starter = Literal["user", "torchrun", "Lightning", "Slurm", "Open MPI", "TF_CONFIG"]


def without_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without launchers' variables, for a program that starts its own processes."""
    return {name: value for name, value in environment.items() if not name.startswith(LAUNCHER_PREFIXES)}


@dataclass(frozen=True)
class Launch:
    """One process of a run.

    Attributes:
      started_by: a launcher, or the user. Lightning starts this program again for each further replica of a node.
      rank: 0 for the only or the first process of a run; None on further nodes with Lightning, which assigns the rank.
      local_rank: rank among the processes on this node.
      world_size: number of processes that the launcher has started; None if this program starts its own processes.
      local_world_size: number of these processes on this node; None if `world_size` is None.
      node: number of this node among the nodes of the run, from 0.
      num_nodes: number of nodes; None if no launcher has given it.
    """

    started_by: Starter
    rank: int | None
    local_rank: int
    world_size: int | None
    local_world_size: int | None
    node: int
    num_nodes: int | None

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> "Launch":
        """Raises UserError if TF_CONFIG is invalid, or a launcher's variable is set although there is no launcher."""
        if "TORCHELASTIC_RUN_ID" in environment:
            numbers = _numbers(environment, "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
            return cls._of_launcher("torchrun", *numbers)
        if environment.get("OMPI_COMM_WORLD_SIZE", "1") != "1":
            names = [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "LOCAL_RANK", "SIZE", "LOCAL_SIZE")]
            return cls._of_launcher("Open MPI", *_numbers(environment, *names))
        if environment.get("SLURM_STEP_NUM_TASKS", "1") != "1":
            names = [f"SLURM_{name}" for name in ("PROCID", "LOCALID", "STEP_NUM_TASKS", "STEP_NUM_NODES", "STEP_ID")]
            rank, local_rank, size, nodes, step = _numbers(environment, *names)
            if step < LARGEST_STEP:
                local_size = size // nodes if nodes and size % nodes == 0 else 0
                return cls._of_launcher("Slurm", rank, local_rank, size, local_size)
        if STARTED_BY in environment and "LOCAL_RANK" in environment:
            local_rank, node = _numbers(environment, "LOCAL_RANK", "NODE_RANK")
            return cls("Lightning", None if node else local_rank, local_rank, None, None, node, None)
        if "TF_CONFIG" in environment:
            addresses, rank = read_tf_config(environment["TF_CONFIG"])
            hosts = [host for host, _ in addresses]
            own = hosts[rank]
            if len(hosts) > 1:
                return cls._of_launcher("TF_CONFIG", rank, hosts[:rank].count(own), len(hosts), hosts.count(own))
        for name in ("LOCAL_RANK", "RANK", "WORLD_SIZE"):
            if name in environment and STARTED_BY not in environment:
                raise UserError(
                    f"{name} {environment[name]}: this variable of the environment says that this is one of several"
                    f" processes, but no launcher has started it; unset {name}, or use torchrun, srun or mpirun"
                )
        # The user sets it for Lightning, which starts further processes on each node where the user has started one.
        node = _numbers(environment, "NODE_RANK")[0] if "NODE_RANK" in environment else 0
        return cls("user", None if node else 0, 0, None, None, node, None)

    @classmethod
    def _of_launcher(cls, started_by: Starter, rank: int, local_rank: int, size: int, local_size: int) -> "Launch":
        """Raises UserError unless each node has the same number of processes, with consecutive ranks."""
        if local_size == 0 or size % local_size or rank % local_size != local_rank:
            starts = "names" if started_by == "TF_CONFIG" else "has started"
            raise UserError(
                f"{started_by} {starts} {size} processes; each node needs equally many, with consecutive ranks"
                " (docs/nodes.md)"
            )
        return cls(started_by, rank, local_rank, size, local_size, rank // local_size, size // local_size)

    @property
    def first_pid(self) -> int:
        """Id of a process of which all processes of the run on this node are descendants."""
        return os.getppid() if self.world_size is not None and self.started_by != "TF_CONFIG" else os.getpid()

    @property
    def is_first(self) -> bool:
        """Whether this is the first process of the run, which prints for all."""
        return self.node == self.local_rank == 0

    def number(self, processes_per_node: int) -> int:
        """The rank, also where Lightning has not assigned it yet."""
        return self.node * processes_per_node + self.local_rank if self.rank is None else self.rank


def read_tf_config(text: str) -> tuple[list[tuple[str, int]], int]:
    """Reads the variable TF_CONFIG of TensorFlow: (host, port) of each worker, a chief first; and this worker's index.

    Source: TensorFlow's guide to multi-worker training; TFConfigClusterResolver. Raises UserError if the value is not
    such JSON, or has tasks that take no part in synchronous training.
    """
    try:
        config = json.loads(text)
        chiefs, workers = (config["cluster"].pop(kind, []) for kind in ("chief", "worker"))
        addresses = [(host, int(port)) for host, _, port in (address.rpartition(":") for address in chiefs + workers)]
        index = int(config["task"]["index"]) + {"chief": 0, "worker": len(chiefs)}[config["task"]["type"]]
        if config["cluster"] or not 0 <= index < len(addresses) or not all(host for host, _ in addresses):
            raise ValueError
        return addresses, index
    except (ValueError, KeyError, TypeError, AttributeError):
        form = '{"cluster": {"worker": ["HOST:PORT", ...]}, "task": {"type": "worker", "index": 0}}'
        form += ", of types worker and chief alone, with the task in the cluster"
        raise UserError(f"TF_CONFIG {text[:80]}: this variable of the environment should be {form}") from None


def _numbers(environment: Mapping[str, str], *names: str) -> list[int]:
    return [int(environment[name]) for name in names]
