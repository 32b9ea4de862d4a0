"""Helper of the checks that run in several processes."""

from typing import Any

import torch.distributed as dist


def gathered(mine: object) -> list[Any]:
    """The `mine` of every rank, in the order of the ranks. All ranks must call this function."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone
