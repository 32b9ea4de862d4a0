import os

import pytest

from common.platform.errors import UserError
from common.platform.launch import STARTED_BY, Launch, without_launcher

TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}


def test_a_program_that_the_user_starts_is_alone():
    launch = Launch.read({})
    assert launch == Launch("user", 0, 0, None, 1, None, os.getpid()) and launch.is_first


def test_torchrun_says_who_a_process_is():
    launch = Launch.read(TORCHRUN)
    assert launch == Launch("torchrun", 5, 1, 8, 2, "env://", os.getppid()) and not launch.is_first


def test_lightning_starts_further_replicas_itself():
    launch = Launch.read({"LOCAL_RANK": "1", "NODE_RANK": "0", STARTED_BY: "1@here"})
    assert (launch.started_by, launch.rank, launch.local_rank, launch.world_size) == ("lightning", 1, 1, None)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({**TORCHRUN, "RANK": "abc"}, "RANK abc: this variable of the environment should be a number from 0 on"),
        ({**TORCHRUN, "WORLD_SIZE": ""}, "WORLD_SIZE unset: "),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "-1"}, "LOCAL_WORLD_SIZE -1: "),
        (
            {"LOCAL_RANK": "1"},
            "LOCAL_RANK 1: this variable of the environment says that this is one of several processes",
        ),
        ({"RANK": "abc"}, "RANK abc: "),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE 2: "),
        ({"LOCAL_RANK": "\N{SUPERSCRIPT TWO}", STARTED_BY: "1@here"}, "LOCAL_RANK \N{SUPERSCRIPT TWO}: "),
    ],
)
def test_variables_that_make_no_sense_are_told(environment, message):
    with pytest.raises(UserError) as told:
        Launch.read(environment)
    assert str(told.value).startswith(message)


def test_a_program_that_starts_processes_hides_its_own_launcher_from_them():
    assert without_launcher({**TORCHRUN, "HOME": "/"}) == {"HOME": "/"}
