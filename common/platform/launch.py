"""The place of this process in its run (rank, world size, node), from environment variables that launchers set."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from common.platform.errors import UserError

# The environment variable that names the process of this project that started this one, `PID@HOST`: `end_with_starter`.
STARTED_BY = "STARTED_BY_PROCESS"

# Environment variables that launchers set for the processes that they start.
LAUNCHER_VARIABLES = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TF_CONFIG"),
)
LAUNCHER_PREFIXES = ("OMPI_", "PMIX_", "SLURM_STEP", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")
LARGEST_STEP = 0xFFFFFFF0  # Slurm's step ids from here on mean a job's own script, a shell, ...: not a step of srun

Starter = Literal["user", "torchrun", "Lightning", "Slurm", "Open MPI", "TF_CONFIG"]


def without_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without launchers' variables, for a program that starts its own processes."""
    return {
        name: value
        for name, value in environment.items()
        if name not in LAUNCHER_VARIABLES and not name.startswith(LAUNCHER_PREFIXES)
    }


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
        """The launch of this process.

        Raises:
          UserError: a variable has an invalid value, or is set although no launcher has started this process.
        """
        if "TORCHELASTIC_RUN_ID" in environment:
            return cls._of_torchrun(environment)
        if "OMPI_COMM_WORLD_SIZE" in environment and _number(environment, "OMPI_COMM_WORLD_SIZE") > 1:
            return cls._of_open_mpi(environment)
        if _is_step_of_several_tasks(environment):
            return cls._of_slurm(environment)
        if STARTED_BY in environment and "LOCAL_RANK" in environment:
            return cls._of_lightning(environment)
        if "TF_CONFIG" in environment:
            return cls._of_tf_config(environment["TF_CONFIG"])
        return cls._of_user(environment)

    @classmethod
    def _of_torchrun(cls, environment: Mapping[str, str]) -> "Launch":
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
        rank, local_rank, size, local_size, node, nodes = (_number(environment, name) for name in names)
        if local_size * nodes != size:
            raise UserError(
                f"torchrun has started {size} processes, {local_size} of them on this node, of {nodes}: give the same"
                " --nproc-per-node on every node"
            )
        return cls("torchrun", rank, local_rank, size, local_size, node, nodes)

    @classmethod
    def _of_lightning(cls, environment: Mapping[str, str]) -> "Launch":
        local_rank, node = (_number(environment, name) for name in ("LOCAL_RANK", "NODE_RANK"))
        return cls("Lightning", None if node else local_rank, local_rank, None, None, node, None)

    @classmethod
    def _of_open_mpi(cls, environment: Mapping[str, str]) -> "Launch":
        names = ("RANK", "LOCAL_RANK", "SIZE", "LOCAL_SIZE")
        numbers = [_number(environment, f"OMPI_COMM_WORLD_{name}") for name in names]
        return cls._node_by_node("Open MPI", "mpirun --map-by slot", *numbers)

    @classmethod
    def _of_slurm(cls, environment: Mapping[str, str]) -> "Launch":
        names = ("PROCID", "LOCALID", "STEP_NUM_TASKS", "STEP_NUM_NODES")
        rank, local_rank, tasks, nodes = (_number(environment, f"SLURM_{name}") for name in names)
        local_size = tasks // max(1, nodes) if tasks % max(1, nodes) == 0 else 0
        return cls._node_by_node("Slurm", "srun --distribution=block", rank, local_rank, tasks, local_size)

    @classmethod
    def _node_by_node(
        cls, started_by: Starter, spread: str, rank: int, local_rank: int, size: int, local_size: int
    ) -> "Launch":
        """Raises UserError unless each node has the same number of processes, with consecutive ranks.

        Args:
          spread: the command that starts processes in this way.
        """
        if local_size == 0 or size % local_size or rank % local_size != local_rank:
            raise UserError(
                f"{started_by} has started {size} process{'es' * (size != 1)}; each node needs equally many, with"
                f" consecutive ranks: use {spread}, with a multiple of the number of nodes"
            )
        return cls(started_by, rank, local_rank, size, local_size, rank // local_size, size // local_size)

    @classmethod
    def _of_tf_config(cls, text: str) -> "Launch":
        addresses, rank = read_tf_config(text)
        if len(addresses) == 1:
            return cls._of_user({})
        hosts = [host for host, _ in addresses]
        nodes = list(dict.fromkeys(hosts))
        local_rank, local_size = hosts[:rank].count(hosts[rank]), hosts.count(hosts[rank])
        node = nodes.index(hosts[rank])
        return cls("TF_CONFIG", rank, local_rank, len(hosts), local_size, node, len(nodes))

    @classmethod
    def _of_user(cls, environment: Mapping[str, str]) -> "Launch":
        for name in ("LOCAL_RANK", "RANK", "WORLD_SIZE"):
            if name in environment and STARTED_BY not in environment:
                raise UserError(
                    f"{name} {environment[name]}: this variable of the environment says that this is one of several"
                    f" processes, but no launcher has started it; unset {name}, or use torchrun, srun or mpirun"
                )
        # The user sets it for Lightning, which starts further processes on each node where the user has started one.
        node = _number(environment, "NODE_RANK") if "NODE_RANK" in environment else 0
        return cls("user", None if node else 0, 0, None, None, node, None)

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

    @property
    def is_first_of_further_node(self) -> bool:
        """Whether this is the first process of a node that does not have the first process of the run."""
        return self.local_rank == 0 < self.node


def _is_step_of_several_tasks(environment: Mapping[str, str]) -> bool:
    """Whether srun has started several processes including this one; False for a job's own script or its shell."""
    return (
        "SLURM_STEP_NUM_TASKS" in environment
        and _number(environment, "SLURM_STEP_NUM_TASKS") > 1
        and _number(environment, "SLURM_STEP_ID") < LARGEST_STEP
    )


def read_tf_config(text: str) -> tuple[list[tuple[str, int]], int]:
    """Reads the variable TF_CONFIG of TensorFlow: (host, port) of each worker, a chief first; and this worker's index.

    Source: TensorFlow's guide to multi-worker training; TFConfigClusterResolver.

    Raises:
      UserError: the value is not such JSON, or names a task type that takes no part in synchronous training.
    """
    try:
        cluster_config: Any = json.loads(text)
        cluster, task = cluster_config["cluster"], cluster_config["task"]
        workers = {kind: [str(address) for address in cluster[kind]] for kind in ("chief", "worker") if kind in cluster}
        kind, index = str(task["type"]), int(task["index"])
    except (ValueError, KeyError, TypeError, RecursionError):
        shape = '{"cluster": {"worker": ["HOST:PORT", ...]}, "task": {"type": "worker", "index": 0}}'
        raise UserError(f"TF_CONFIG {text[:80]}: this variable of the environment should be {shape}") from None
    others = sorted({*cluster, kind} - {"chief", "worker"})
    if others:
        raise UserError(f"TF_CONFIG: {', '.join(others)}: this program takes only tasks of type worker and chief")
    if not 0 <= index < len(workers.get(kind, ())):
        raise UserError(f"TF_CONFIG: its task is {kind} {index}, which its cluster does not have")
    nodes = []
    for address in (*workers.get("chief", ()), *workers.get("worker", ())):
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise UserError(f"TF_CONFIG: worker {address}: should be HOST:PORT")
        nodes.append((host, int(port)))
    first = len(workers.get("chief", ())) if kind == "worker" else 0
    return nodes, first + index


def _number(environment: Mapping[str, str], name: str) -> int:
    """The value of a variable. Raises UserError if the variable is unset or not a whole number from 0 on."""
    text = environment.get(name, "")
    if not (text.isascii() and text.isdigit()):
        raise UserError(f"{name} {text or 'unset'}: this variable of the environment should be a number from 0 on")
    return int(text)
