"""Who this process is among those of its run, from what launchers leave in the environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from common.platform.errors import UserError

# Tells a process of this project's which other one has started it: `PID@HOST`, see `common.platform.family`.
STARTED_BY = "STARTED_BY_PROCESS"

# What launchers tell the processes that they start.
LAUNCHER_VARIABLES = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
)


def without_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """For a program that starts processes by itself: they are not those that a launcher has told of."""
    return {name: value for name, value in environment.items() if name not in LAUNCHER_VARIABLES}


@dataclass(frozen=True)
class Launch:
    """One process of a run.

    Attributes:
      started_by: torchrun, or Lightning, which starts this program again for each further replica; or the user.
      rank: 0 for the only process of a run, or the first one.
      local_rank: the same among those on this machine.
      world_size: how many processes the launcher has started; None where this program starts its own.
      num_nodes: machines that they are on.
      rendezvous: where they find each other, for torch.distributed; None where this program decides it.
      first_pid: the process that the user has started: torchrun, which is the parent of each replica, or this one.
    """

    started_by: Literal["user", "torchrun", "lightning"]
    rank: int
    local_rank: int
    world_size: int | None
    num_nodes: int
    rendezvous: str | None
    first_pid: int

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> "Launch":
        """Of this process.

        Raises:
          UserError: variables that make no sense, or that nobody has set who starts processes.
        """
        if "TORCHELASTIC_RUN_ID" in environment:
            names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
            rank, local_rank, world_size, local_world_size = (_number(environment, name) for name in names)
            num_nodes = world_size // max(1, local_world_size)
            return cls("torchrun", rank, local_rank, world_size, num_nodes, "env://", os.getppid())
        if STARTED_BY not in environment:
            for name in ("LOCAL_RANK", "RANK", "WORLD_SIZE"):
                if name in environment:
                    raise UserError(
                        f"{name} {environment[name]}: this variable of the environment says that this is one of several"
                        f" processes, but no launcher has started it; unset {name}, or use torchrun"
                    )
        if "LOCAL_RANK" not in environment:
            return cls("user", 0, 0, None, 1, None, os.getpid())
        local_rank = _number(environment, "LOCAL_RANK")
        return cls("lightning", local_rank, local_rank, None, 1, None, os.getpid())

    @property
    def is_first(self) -> bool:
        """Whether this process speaks for all."""
        return self.rank == 0


def _number(environment: Mapping[str, str], name: str) -> int:
    """Raises UserError where the variable is none, or no number from 0 on."""
    text = environment.get(name, "")
    if not (text.isascii() and text.isdigit()):
        raise UserError(f"{name} {text or 'unset'}: this variable of the environment should be a number from 0 on")
    return int(text)
