import os

from common.platform.launch import Launch


def test_a_program_that_the_user_starts_is_alone():
    launch = Launch.read({})
    assert launch == Launch("user", 0, 0, None, 1, None, os.getpid()) and launch.is_first


def test_torchrun_says_who_a_process_is():
    environment = {"TORCHELASTIC_RUN_ID": "none", "RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}
    launch = Launch.read({**environment, "LOCAL_WORLD_SIZE": "4"})
    assert launch == Launch("torchrun", 5, 1, 8, 2, "env://", os.getppid()) and not launch.is_first


def test_lightning_starts_further_replicas_itself():
    launch = Launch.read({"LOCAL_RANK": "1", "NODE_RANK": "0"})
    assert (launch.started_by, launch.rank, launch.local_rank, launch.world_size) == ("lightning", 1, 1, None)
