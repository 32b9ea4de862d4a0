"""Which of a run's processes this one is, from what launchers leave in the environment."""

import os


def under_torchrun() -> bool:
    """Whether torchrun has started this process as one of several."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_first_process() -> bool:
    """Whether this is the only process of a run, or the first: torchrun counts in RANK, Lightning in LOCAL_RANK."""
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))) == 0


def launched_processes() -> int | None:
    """How many processes torchrun has started; None where this program starts its own."""
    return int(os.environ["WORLD_SIZE"]) if under_torchrun() else None


def first_pid() -> int:
    """The process that the user has started: torchrun, which is the parent of each replica, or this one."""
    return os.getppid() if under_torchrun() else os.getpid()
