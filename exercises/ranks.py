"""What checks of programs with several processes share."""

from typing import Any

import torch.distributed as dist


def gathered(mine: object) -> list[Any]:
    """`mine` of every rank, in the order of the ranks; all must call it."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone
