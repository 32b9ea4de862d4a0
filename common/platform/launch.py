"""Who this process is among those of its run, from what launchers leave in the environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


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
        """Of this process."""
        local_rank = int(environment.get("LOCAL_RANK", "0"))
        if "TORCHELASTIC_RUN_ID" in environment:
            world_size = int(environment["WORLD_SIZE"])
            num_nodes = world_size // int(environment["LOCAL_WORLD_SIZE"])
            rank = int(environment["RANK"])
            return cls("torchrun", rank, local_rank, world_size, num_nodes, "env://", os.getppid())
        started_by: Literal["user", "lightning"] = "lightning" if "LOCAL_RANK" in environment else "user"
        return cls(started_by, local_rank, local_rank, None, 1, None, os.getpid())

    @property
    def is_first(self) -> bool:
        """Whether this process speaks for all."""
        return self.rank == 0
