"""Which of a run's processes this one is, from what launchers leave in the environment."""

import os


def is_first_process() -> bool:
    """Whether this is the only process of a run, or the first: torchrun counts in RANK, Lightning in LOCAL_RANK."""
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))) == 0
