"""launch/ray_train.py and compare.py's jobs, on a real Ray cluster of two nodes."""

import os
import re
import signal
import sys
import time

import psutil
import pytest
from conftest import CPU, REPOSITORY, needs_ray, program_of, read_csv, run, start_process, steps_taken, wait_for

from common.record.results import read_result, read_step_losses

pytestmark = pytest.mark.xdist_group("ray")

RAY_TRAIN = (sys.executable, "-m", "launch.ray_train")
TRAINING = (*CPU, "--dataset", "digits", "--precision", 64, "--epochs", 8, "--batch-size", 32)


def replicas(run_dir, implementation):
    """The processes of a run."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if f"{implementation}_impl" in words and str(run_dir) in words and "launch.ray_train" not in words:
            found.append(process)
    return found


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["pt", "tf", "ptl"])
def test_a_worker_that_is_killed_is_replaced_and_training_goes_on(ray_cluster, tmp_path, implementation):
    """Trains on two nodes; the losses equal those of a run on one device that was never stopped."""
    alone = tmp_path / "alone"
    run(*program_of(implementation), *TRAINING, "--run-dir", alone)
    run_dir = tmp_path / "run"
    start = (*RAY_TRAIN, "--nnodes", 2, "--max-restarts", 1, "--storage-path", tmp_path / "ray")
    checkpoints = ("--run-dir", run_dir, "--checkpoint-every", "epoch", "--resume", "auto")
    process = start_process((*start, "-m", f"{implementation}_impl", *TRAINING, *checkpoints), **ray_cluster)
    wait_for(lambda: steps_taken(run_dir) > 100, 180)
    first, second = sorted(replicas(run_dir, implementation), key=lambda replica: replica.environ().get("RANK", ""))
    second.kill()
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert not first.is_running() and not replicas(run_dir, implementation)
    result = read_result(run_dir)
    assert (result.config.num_nodes, result.config.devices) == (2, 1)
    assert 0 < result.resumed_from < result.num_steps
    assert read_step_losses(run_dir) == pytest.approx(read_step_losses(alone), rel=1e-12)


@needs_ray
@pytest.mark.slow
def test_a_comparison_is_made_by_jobs(ray_cluster, tmp_path):
    folder = tmp_path / "r"
    command = (sys.executable, "compare.py", "--launcher", "ray", "--repeats", 1, *CPU, "--output-dir", folder)
    options = ("--implementations", "pt", "--mode", "plain", "tuned", "--epochs", 1)
    text = run(*command, *options, **ray_cluster).stdout
    assert "Ray: job" in text and "runs/seed-0/round-1/pt and 1 more" in text
    rows = read_csv(folder / "results.csv")
    assert [(row["status"], row["same_training"]) for row in rows] == [("ok", ""), ("ok", "True")]


@needs_ray
@pytest.mark.slow
def test_runs_of_two_nodes(ray_cluster, tmp_path):
    command = (sys.executable, "compare.py", "--launcher", "ray", "--repeats", 1, *CPU, "--output-dir", tmp_path / "r")
    options = ("--implementations", "tf", "pt", "ptl", "--epochs", 1, "--num-nodes", 2, "--devices", 1)
    run(*command, *options, **ray_cluster)
    rows = read_csv(tmp_path / "r" / "results.csv")
    assert [(row["status"], row["devices"]) for row in rows] == [("ok", "2")] * 3
    assert [row["same_training"] for row in rows] == ["", "True", "True"]


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        (("--max-restarts", 3, "-m", "pt_impl", "--epochs", -1), 2, "python -m pt_impl: error: --epochs -1: "),
        (
            ("-m", "pt_impl", *CPU, "--learning-rate", 1e9),
            1,
            "python -m launch.ray_train: error: worker 0: exit status 1; --max-restarts 0",
        ),
    ],
)
def test_what_the_user_has_to_mend_is_not_tried_again(ray_cluster, tmp_path, words, status, line):
    done = run(*RAY_TRAIN, "--storage-path", tmp_path, *words, expect=status, **ray_cluster)
    told = done.stdout + done.stderr
    assert line in told and len(set(re.findall(r"pid=(\d+)\) world_rank=0", told))) == 1


@needs_ray
@pytest.mark.slow
def test_what_ray_would_wait_for_is_reported_at_once(ray_cluster):
    done = run(*RAY_TRAIN, "--nnodes", 3, "-m", "pt_impl", expect=1, **ray_cluster)
    assert done.stderr.splitlines()[-1] == "python -m launch.ray_train: error: --nnodes 3: the cluster has 2 nodes"
    done = run(*RAY_TRAIN, "--num-cpus", 99, "-m", "pt_impl", expect=1, **ray_cluster)
    line = "--num-cpus 99: with --nproc-per-node 1 a node needs 99 CPUs; 0 of the cluster's 2 nodes have them"
    assert done.stderr.splitlines()[-1] == f"python -m launch.ray_train: error: {line}"
    done = run(*RAY_TRAIN, "-m", "pt_impl", expect=1, **{**ray_cluster, "RAY_ADDRESS": "127.0.0.1:1"})
    line = "error: --address 127.0.0.1:1: no Ray cluster answers there (Connection refused)"
    assert done.stderr.splitlines()[-1] == f"python -m launch.ray_train: {line}"


BUSY = """
import ray, time
ray.init()
hold = ray.remote(num_cpus=1)(lambda: time.sleep(600))
held = [hold.remote() for _ in range(int(ray.cluster_resources()["CPU"]))]
while ray.available_resources().get("CPU", 0) > 0:
    time.sleep(0.2)
print("busy", flush=True)
time.sleep(600)
"""


@needs_ray
@pytest.mark.slow
def test_ctrl_c_while_ray_waits_for_cpus_is_one_line(ray_cluster):
    """Ray's own time-out of a minute is over by then: it would print a stack trace, and wait again."""
    holds = start_process((sys.executable, "-c", BUSY), **ray_cluster)
    assert holds.stdout.readline() == "busy\n"
    process = start_process((*RAY_TRAIN, "-m", "pt_impl", *TRAINING), **ray_cluster)
    time.sleep(75)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    holds.kill()
    holds.communicate()
    assert process.returncode == 130 and "python -m launch.ray_train: interrupted" in err.splitlines()
    assert "Traceback" not in out + err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--nnodes", 0, "-m", "pt_impl"), "argument --nnodes: 0: not a number from 1 on"),
        (("--nnodes", 2), "-m MODULE: missing; which program?"),
        (("pt_impl", "--epochs", 1), "pt_impl: no such program; for a module: -m pt_impl"),
        (("-m", "pt_impl"), "ray is not installed: pip install -r requirements-ray.txt -c constraints.txt"),
    ],
)
def test_mistakes_are_reported_in_a_line(tmp_path, words, line):
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text('raise ModuleNotFoundError("No module named ray", name="ray")')
    path = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"}
    done = run(*RAY_TRAIN, *words, cwd=tmp_path, expect=1 if "ray is" in line else 2, **path)
    assert done.stderr.splitlines()[-1] == f"python -m launch.ray_train: error: {line}"
    command = (sys.executable, REPOSITORY / "compare.py", "--launcher", "ray", *CPU)
    if "ray is" in line:
        done = run(*command, cwd=tmp_path, expect=2, **path)
        assert done.stderr.splitlines()[-1].endswith(f"error: --launcher ray: {line}")
