"""Two nodes are in lockstep with one: their processes find each other by host name, over a separate network."""

import itertools
import json
import os
import shlex
import shutil
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from agreement import assert_arrays_agree, assert_the_same
from conftest import (
    CPU,
    program_of,
    start_process,
    steps_taken,
    train,
    wait_for,
)
from nodes import NAMES, Nodes

from common.experiment import RESIDENT_VARIABLE
from common.record.results import read_result

pytestmark = [
    pytest.mark.xdist_group("nodes"),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="networks need root and iproute2"),
]

STEPS, TOLERANCE = 56, 1e-12
# Of a batch of 15 examples, one node gets 8, the other 7. The last batch has 2, so of four replicas two get none.
SAME = (
    *(*CPU, "--precision", 64, "--train-size", 407, "--batch-size", 15, "--epochs", 2, "--save-first-batch", "true"),
    *("--learning-rate", 0.05, "--schedule", "cosine", "--momentum", 0.9, "--weight-decay", 5e-4),
)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    nodes = Nodes(tmp_path_factory.mktemp("nodes"), os.getpid() % 256)
    nodes.start()
    yield nodes
    nodes.stop()


@contextmanager
def started(nodes, commands, environments, before=None):
    """Starts the commands, each on its node, and yields their processes; at the end, kills those that still run.

    Args:
      before: name of a node -> the shell command that runs there before the process.
    """
    processes = []
    for (name, command), environment in zip(commands, environments, strict=True):
        prepared = ("sh", "-c", f'{before[name]} && exec "$@"', "sh") if before and name in before else ()
        processes.append(start_process(nodes.command(name, *prepared, *command), **environment))
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def torchrun(implementation, nodes, devices, options):
    started_by = Path(sys.prefix, "bin", "torchrun")
    launcher = ("--nnodes", 2, "--nproc-per-node", devices, "--master-addr", "n1")
    commands = [
        (name, (started_by, *launcher, "--node-rank", rank, "--no-python", *program_of(implementation), *options))
        for rank, name in enumerate(NAMES)
    ]
    return commands, [{}, {}]


def by_hand(implementation, nodes, devices, options):
    """The commands and environment variables that start Lightning on several nodes without a launcher."""
    more = ("--devices", devices, "--num-nodes", 2)
    command = (*program_of(implementation), *options, *more)
    environments = [{"NODE_RANK": str(rank), "MASTER_ADDR": "n1", "MASTER_PORT": "29500"} for rank in range(2)]
    return [(name, command) for name in NAMES], environments


def tf_config(implementation, nodes, devices, options):
    """One process per device, because on the CPU a worker of TensorFlow can't have several devices."""
    workers = [f"{name}:{4000 + local_rank}" for name, local_rank in itertools.product(NAMES, range(devices))]
    command = (*program_of(implementation), *options)
    cluster = {"worker": workers}
    environments = [
        {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})}
        for index in range(len(workers))
    ]
    return [(worker.partition(":")[0], command) for worker in workers], environments


def mpirun(implementation, nodes, devices, options):
    """Starts mpirun on n1; a script instead of ssh starts Open MPI's daemon on n2."""
    agent = nodes.folder / "agent"
    words = shlex.join(nodes.command("n2", "sh", "-c"))
    agent.write_text(f'#!/bin/sh\nshift\nexec {words} "$*"\n')
    agent.chmod(0o755)
    command = ("mpirun", "--mca", "plm_rsh_agent", agent, "-H", f"n1:{devices},n2:{devices}", "-np", 2 * devices)
    program = (*program_of(implementation), *options)
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return [("n1", (*command, "--bind-to", "none", *program))], [as_root]


STREAMED = {RESIDENT_VARIABLE: "0"}


@pytest.mark.quick("mpirun-pt-1")
@pytest.mark.parametrize(
    ("start", "implementation", "devices", "mode", "limit"),
    [
        *((torchrun, name, 2, "plain", {}) for name in ("pt", "jax")),
        (torchrun, "ptl", 1, "plain", {}),
        (by_hand, "ptl", 2, "plain", {}),
        (tf_config, "tf", 2, "plain", {}),
        *((mpirun, name, devices, "plain", {}) for name, devices in (("pt", 1), ("ptl", 2), ("tf", 1), ("jax", 1))),
        (torchrun, "pt", 2, "tuned", {}),
        (torchrun, "ptl", 2, "tuned", STREAMED),
        (tf_config, "tf", 2, "tuned", STREAMED),
    ],
)
def test_two_nodes_are_in_lockstep_with_one(nodes, trained, tmp_path, start, implementation, devices, mode, limit):
    if start is mpirun and not shutil.which("mpirun"):
        pytest.skip("Open MPI needs Debian's openmpi-bin")
    options = (*SAME, "--mode", mode, "--run-dir", tmp_path / "r")
    commands, environments = start(implementation, nodes, devices, options)
    with started(nodes, commands, [environment | limit for environment in environments]) as processes:
        said = [process.communicate(timeout=300) for process in processes]
    assert {process.returncode for process in processes} == {0}, said
    reference = trained("pt", *SAME)
    assert_the_same(reference, tmp_path / "r", TOLERANCE, STEPS)
    assert_arrays_agree(reference, tmp_path / "r", "first_batch.safetensors", TOLERANCE)
    result = read_result(tmp_path / "r")
    assert (result.devices, result.config.devices, result.config.num_nodes) == (2 * devices, devices, 2)


# How each framework's processes start without a launcher that ends all of them as soon as one has ended.
WITHOUT_MPIRUN = [(torchrun, "pt"), (by_hand, "ptl"), (tf_config, "tf")]


@pytest.mark.slow
@pytest.mark.parametrize(("start", "implementation"), WITHOUT_MPIRUN)
def test_a_node_tells_what_it_lacks(nodes, tmp_path, start, implementation):
    """Only the second node lacks a file, so the first node can't report the error."""
    weights = tmp_path / "data" / "weights.safetensors"
    weights.parent.mkdir()
    shutil.copy(train("pt", tmp_path / "one", "--epochs", 1) / "model.safetensors", weights)
    options = (*CPU, "--initial-weights", weights, "--run-dir", tmp_path / "r")
    hidden = {"n2": f'mount -t tmpfs none "{weights.parent}"'}
    with started(nodes, *start(implementation, nodes, 1, options), hidden) as processes:
        said = processes[1].communicate(timeout=90)[1]
    line = next((line for line in said.splitlines() if f"{implementation}_impl: error:" in line), said)
    assert line.startswith(f"python -m {implementation}_impl: error: on n2: --initial-weights {weights}: ")
    if start is not torchrun:  # torchrun adds its own lines
        assert "Traceback" not in said
        assert processes[1].returncode == 2
    assert steps_taken(tmp_path / "r") == 0


@pytest.mark.slow
@pytest.mark.parametrize(("start", "implementation"), WITHOUT_MPIRUN)
def test_a_node_that_is_lost_is_reported(nodes, tmp_path, start, implementation):
    options = (*CPU, "--epochs", 10000, "--run-dir", tmp_path / "r")
    with started(nodes, *start(implementation, nodes, 1, options)) as processes:
        wait_for(lambda: steps_taken(tmp_path / "r"), seconds=90)
        os.killpg(processes[1].pid, signal.SIGKILL)
        said = processes[0].communicate(timeout=60)[1]
    assert processes[0].returncode == 1
    assert f"{implementation}_impl: error: another process of this run has ended or can't be reached;" in said
    if start is not torchrun:
        assert "Traceback" not in said
