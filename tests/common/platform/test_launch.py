import json
import os

import pytest

from common.platform.errors import UserError
from common.platform.launch import STARTED_BY, Launch


def variables(text):
    return dict(word.split("=", 1) for word in text.split())


# The variables that each real launcher has set, in the second process of the second of two nodes.
TORCHRUN = variables("""
    TORCHELASTIC_RUN_ID=none RANK=3 LOCAL_RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 GROUP_WORLD_SIZE=2
    MASTER_ADDR=n1 MASTER_PORT=29500
""")
SLURM = variables("""
    SLURM_JOB_ID=833969 SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_NTASKS=4 SLURM_STEP_ID=0
    SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=2(x2)
""")
OPEN_MPI = variables("""
    OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2
    OMPI_COMM_WORLD_NODE_RANK=1 PMIX_RANK=3
""")
WORKERS = ["n1:4000", "n1:4001", "n2:4000", "n2:4001"]


def tf_config(kind="worker", index=0, **cluster):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def test_a_program_that_the_user_starts_is_alone():
    launch = Launch.read({})
    assert launch == Launch("user", 0, 0, None, None, 0, None) and launch.is_first


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        (TORCHRUN, "torchrun"),
        (SLURM, "Slurm"),
        (OPEN_MPI, "Open MPI"),
        (tf_config(index=3, worker=WORKERS), "TF_CONFIG"),
        (tf_config(index=2, chief=WORKERS[:1], worker=WORKERS[1:]), "TF_CONFIG"),
    ],
)
def test_each_launcher_says_who_a_process_is(environment, name):
    launch = Launch.read(environment)
    assert (launch.started_by, launch.rank, launch.local_rank, launch.node) == (name, 3, 1, 1)
    assert (launch.world_size, launch.local_world_size, launch.num_nodes) == (4, 2, 2) and not launch.is_first
    assert launch.first_pid == (os.getpid() if name == "TF_CONFIG" else os.getppid())


@pytest.mark.parametrize(
    "environment",
    [
        {**SLURM, "SLURM_STEP_NUM_TASKS": "1"},  # for example, one of several that compare.py has started
        {**SLURM, "SLURM_STEP_ID": "4294967290"},  # a shell of salloc
        {name: value for name, value in SLURM.items() if "STEP" not in name},  # a job's script
        {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1"},
        tf_config(worker=["localhost:4000"]),
    ],
)
def test_one_process_of_a_launcher_is_as_the_users(environment):
    launch = Launch.read(environment)
    assert (launch.started_by, launch.rank, launch.world_size, launch.num_nodes) == ("user", 0, None, None)


def test_lightning_starts_further_replicas_itself():
    launch = Launch.read({"LOCAL_RANK": "1", "NODE_RANK": "0", STARTED_BY: "1@here"})
    assert (launch.started_by, launch.rank, launch.local_rank, launch.world_size) == ("Lightning", 1, 1, None)
    other = Launch.read({"LOCAL_RANK": "0", "NODE_RANK": "1", STARTED_BY: "1@here"})
    assert (other.rank, other.node) == (None, 1) and not other.is_first
    by_hand = Launch.read({"NODE_RANK": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"})
    assert (by_hand.started_by, by_hand.rank, by_hand.node) == ("user", None, 1) and not by_hand.is_first


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({**TORCHRUN, "WORLD_SIZE": "3"}, "torchrun has started 3 processes; each node needs equally many"),
        ({"LOCAL_RANK": "1"}, "LOCAL_RANK 1: this variable of the environment says that this is one of several"),
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "3"}, "Slurm has started 3 processes; each node needs equally many"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, "Open MPI has started 4 processes; each node needs"),
        ({"TF_CONFIG": "{"}, "TF_CONFIG {: this variable of the environment should be {"),
        (tf_config(index=4, worker=WORKERS), "TF_CONFIG {"),
        (tf_config(ps=WORKERS, worker=WORKERS), "TF_CONFIG {"),
    ],
)
def test_variables_that_make_no_sense_are_reported(environment, message):
    with pytest.raises(UserError) as told:
        Launch.read(environment)
    assert str(told.value).startswith(message)
