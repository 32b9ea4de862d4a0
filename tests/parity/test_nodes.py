"""Two nodes are in lockstep with one: processes that find each other by host names, over a network of their own."""

import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys

import pytest
from agreement import assert_the_same
from conftest import CPU, REPOSITORY, changed_code, needs_slurm, run, start_process, steps_taken, train
from nodes import NAMES, Nodes

from common.record.results import read_result

pytestmark = [
    pytest.mark.xdist_group("nodes"),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="networks need root and iproute2"),
]

STEPS, TOLERANCE = 108, 1e-12
# A training set that the batch size does not divide: of the last batch some replicas get fewer examples, or none.
SAME = (
    *(*CPU, "--precision", 64, "--train-size", 418, "--batch-size", 16, "--epochs", 4),
    *("--learning-rate", 0.05, "--schedule", "cosine", "--momentum", 0.9, "--weight-decay", 5e-4),
)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    nodes = Nodes(tmp_path_factory.mktemp("nodes"), os.getpid() % 256)
    nodes.start()
    yield nodes
    nodes.stop()


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return train("pt", tmp_path_factory.mktemp("one") / "r", *SAME)


def run_on(nodes, commands, environments, seconds=300, cwd=REPOSITORY):
    """Starts the commands, each on its node, and returns their exit statuses and what they say on standard error."""
    processes = [
        start_process(nodes.command(name, *command), cwd=cwd, **environment)
        for (name, command), environment in zip(commands, environments, strict=True)
    ]
    try:
        said = [process.communicate(timeout=seconds) for process in processes]
    except subprocess.TimeoutExpired:
        for process in processes:
            process.kill()
        said = [process.communicate() for process in processes]
        raise AssertionError(f"not in time: {said}") from None
    return [process.returncode for process in processes], said


def torchrun(implementation, nodes, devices, options):
    launcher = ("-m", "torch.distributed.run", "--nnodes", 2, "--nproc-per-node", devices, "--master-addr", "n1")
    commands = [
        (name, (sys.executable, *launcher, "--node-rank", rank, "-m", f"{implementation}_impl", *options))
        for rank, name in enumerate(NAMES)
    ]
    return commands, [{}, {}]


def by_hand(implementation, nodes, devices, options):
    """As Lightning is started on several nodes without a launcher."""
    more = ("--devices", devices, "--num-nodes", 2)
    command = (sys.executable, "-m", f"{implementation}_impl", *options, *more)
    environments = [{"NODE_RANK": str(rank), "MASTER_ADDR": "n1", "MASTER_PORT": "29500"} for rank in range(2)]
    return [(name, command) for name in NAMES], environments


def tf_config(implementation, nodes, devices, options):
    """On the CPU a process for each device: a worker of TensorFlow has no several of them there."""
    workers = [f"{name}:{4000 + local_rank}" for name, local_rank in itertools.product(NAMES, range(devices))]
    command = (sys.executable, "-m", f"{implementation}_impl", *options)
    cluster = {"worker": workers}
    environments = [
        {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})}
        for index in range(len(workers))
    ]
    return [(worker.partition(":")[0], command) for worker in workers], environments


def mpirun(implementation, nodes, devices, options):
    """From n1; a script that takes the place of ssh starts Open MPI's daemon on n2."""
    agent = nodes.folder / "agent"
    words = shlex.join(nodes.command("n2", "sh", "-c"))
    agent.write_text(f'#!/bin/sh\nshift\nexec {words} "$*"\n')
    agent.chmod(0o755)
    command = ("mpirun", "--mca", "plm_rsh_agent", agent, "-H", f"n1:{devices},n2:{devices}", "-np", 2 * devices)
    program = (sys.executable, "-m", f"{implementation}_impl", *options)
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return [("n1", (*command, "--bind-to", "none", *program))], [as_root]


STARTS = {torchrun: ("pt", "ptl"), by_hand: ("ptl",), tf_config: ("tf",), mpirun: ("pt", "ptl", "tf")}
NEEDS_MPIRUN = pytest.mark.skipif(not shutil.which("mpirun"), reason="Open MPI needs Debian's openmpi-bin")
QUICK = [(torchrun, "pt", 2), (by_hand, "ptl", 1), (tf_config, "tf", 1), (mpirun, "pt", 1)]


@pytest.mark.parametrize(
    ("start", "implementation", "devices"),
    [
        pytest.param(
            *(start, name, devices),
            marks=[NEEDS_MPIRUN] * (start is mpirun) + [pytest.mark.slow] * ((start, name, devices) not in QUICK),
        )
        for start, names in STARTS.items()
        for name, devices in itertools.product(names, (1, 2))
    ],
)
def test_two_nodes_are_in_lockstep_with_one(nodes, reference, tmp_path, start, implementation, devices):
    options = (*SAME, "--run-dir", tmp_path / "r")
    statuses, said = run_on(nodes, *start(implementation, nodes, devices, options))
    assert set(statuses) == {0}, said
    assert_two_nodes(reference, tmp_path / "r", devices)


@NEEDS_MPIRUN
@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["pt", "ptl", "tf"])
def test_with_a_wrong_address_nothing_is_trained(nodes, tmp_path, implementation):
    """On one machine alone nobody would notice: the second node would find the first one on its own loopback."""
    before, after = "own = MPI.Get_processor_name(),", 'own = "127.0.0.1",'
    folder = changed_code(tmp_path / "copy", "common/platform/rendezvous.py", before, after)
    start = mpirun(implementation, nodes, 1, (*SAME, "--run-dir", tmp_path / "r"))
    with pytest.raises(AssertionError):
        statuses, said = run_on(nodes, *start, seconds=40, cwd=folder)
        assert set(statuses) == {0}, said
    assert not (tmp_path / "r").exists() or steps_taken(tmp_path / "r") == 0


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["pt", "ptl"])
def test_tuned_too(nodes, reference, tmp_path, implementation):
    options = (*SAME, "--mode", "tuned", "--run-dir", tmp_path / "r")
    statuses, said = run_on(nodes, *torchrun(implementation, nodes, 2, options))
    assert set(statuses) == {0}, said
    assert_two_nodes(reference, tmp_path / "r", 2)


@needs_slurm
@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "implementation", ["ptl", *(pytest.param(name, marks=pytest.mark.slow) for name in ("tf", "pt"))]
)
def test_srun_starts_two_nodes(slurm_cluster, reference, tmp_path, implementation, devices):
    srun = ("srun", "--nodes=2", f"--ntasks-per-node={devices}", "--kill-on-bad-exit=1")
    command = (sys.executable, "-m", f"{implementation}_impl", *SAME, "--run-dir", tmp_path / "r")
    run(*srun, *command, timeout=300, **slurm_cluster)
    assert_two_nodes(reference, tmp_path / "r", devices)


def assert_two_nodes(reference, run_dir, devices):
    assert_the_same(reference, run_dir, TOLERANCE, STEPS)
    result = read_result(run_dir)
    assert (result.devices, result.config.devices, result.config.num_nodes) == (2 * devices, devices, 2)
