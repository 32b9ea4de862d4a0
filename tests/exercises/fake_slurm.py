"""Fake sbatch and srun, without Slurm, for the job files of the exercises: all nodes are this machine.

    python fake_slurm.py sbatch [options] file [arguments]      runs a job file to its end, with its #SBATCH lines
    python fake_slurm.py srun [options] command                 in a job file: starts the command's tasks on all nodes

Tasks get the environment variables of Slurm 22.05; test_slurm.py compares them with those of a real cluster. An option
that is not defined below is an error, even if Slurm knows it. It is also an error if a job requests CPUs but does not
use them.
"""

import argparse
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

SECONDS_TO_KILL = 2  # between SIGTERM and SIGKILL, as in slurm_cluster.py

sbatch_options = argparse.ArgumentParser(prog="sbatch", allow_abbrev=False)
sbatch_options.add_argument("--job-name")
sbatch_options.add_argument("--nodes", type=int, default=1)
sbatch_options.add_argument("--ntasks-per-node", type=int, default=1)
sbatch_options.add_argument("--cpus-per-task", type=int, default=1)
sbatch_options.add_argument("--gpus-per-node", type=int)
sbatch_options.add_argument("--time", default="60")
sbatch_options.add_argument("--output", default="slurm-%j.out")
sbatch_options.add_argument("file", type=Path)
sbatch_options.add_argument("arguments", nargs=argparse.REMAINDER)

srun_options = argparse.ArgumentParser(prog="srun", allow_abbrev=False)
srun_options.add_argument("--cpus-per-task", type=int, default=1)  # srun does not use sbatch's value
srun_options.add_argument("--kill-on-bad-exit", type=int, default=0)
srun_options.add_argument("command", nargs=argparse.REMAINDER)


def sbatch(words: list[str]) -> int:
    """Runs the job; prints what sbatch prints, and at the end the job's state as `scontrol show job` shows it."""
    file = sbatch_options.parse_args(words).file
    # The command line comes last, because it overrides the options in the file.
    options = sbatch_options.parse_args([*directives(file), *words])
    job = random.randrange(1, 1_000_000)
    print(f"Submitted batch job {job}", flush=True)
    name = options.job_name or file.name
    command = ["bash", str(file), *options.arguments]
    environment = job_environment(options, job, name)
    with open(options.output.replace("%x", name).replace("%j", str(job)), "w") as output:
        batch = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            state = "FAILED" if batch.wait(seconds(options.time)) else "COMPLETED"
        except subprocess.TimeoutExpired:
            os.killpg(batch.pid, signal.SIGTERM)
            time.sleep(SECONDS_TO_KILL)
            os.killpg(batch.pid, signal.SIGKILL)
            state = "TIMEOUT"
    print(f"JobState={state}")
    return 0


def seconds(limit: str) -> int:
    """The seconds of a time limit, which is given as minutes or as hours:minutes:seconds."""
    hours, minutes, rest = map(int, limit.split(":")) if ":" in limit else (0, int(limit), 0)
    return hours * 3600 + minutes * 60 + rest


def directives(file: Path) -> list[str]:
    """The options in the #SBATCH lines before the first command."""
    words = []
    for line in file.read_text().splitlines():
        if line.startswith("#SBATCH "):
            words += shlex.split(line.removeprefix("#SBATCH "), comments=True)
        elif line and not line.startswith("#"):
            break
    return words


def job_environment(options: argparse.Namespace, job: int, name: str) -> dict[str, str]:
    """The environment variables of the job file, which runs on the first node."""
    nodes, tasks = options.nodes, options.ntasks_per_node
    nodelist = "n1" if nodes == 1 else f"n[1-{nodes}]"
    cpus = tasks * options.cpus_per_task
    variables = {
        "JOB_ID": job,
        "JOBID": job,
        "JOB_NAME": name,
        "JOB_NODELIST": nodelist,
        "NODELIST": nodelist,
        "JOB_NUM_NODES": nodes,
        "NNODES": nodes,
        "NTASKS": nodes * tasks,
        "NPROCS": nodes * tasks,
        "NTASKS_PER_NODE": tasks,
        "TASKS_PER_NODE": each(tasks, nodes),
        "CPUS_PER_TASK": options.cpus_per_task,
        "CPUS_ON_NODE": cpus,
        "JOB_CPUS_PER_NODE": each(cpus, nodes),
        "SUBMIT_DIR": Path.cwd(),
        "SUBMIT_HOST": socket.gethostname(),
        **place(node=0, local_rank=0, tasks_per_node=1),
    }
    if options.gpus_per_node is not None:
        variables["GPUS_PER_NODE"] = options.gpus_per_node
    if options.gpus_per_node:
        variables["GPUS_ON_NODE"] = options.gpus_per_node
    return slurm_environment(variables)


def srun(words: list[str]) -> int:
    """Runs the tasks and returns the highest of their exit statuses."""
    options = srun_options.parse_args(words)
    nodes, tasks_per_node = int(os.environ["SLURM_NNODES"]), int(os.environ["SLURM_NTASKS_PER_NODE"])
    if options.cpus_per_task != int(os.environ["SLURM_CPUS_PER_TASK"]):  # Slurm would continue
        raise SystemExit(f"srun: tasks get {options.cpus_per_task} CPUs, not those that sbatch has got for them")
    step = {
        "STEP_ID": 0,
        "STEPID": 0,
        "STEP_NODELIST": os.environ["SLURM_NODELIST"],
        "STEP_NUM_NODES": nodes,
        "STEP_NUM_TASKS": nodes * tasks_per_node,
        "STEP_TASKS_PER_NODE": each(tasks_per_node, nodes),
        "LAUNCH_NODE_IPADDR": "127.0.0.1",
    }
    places = [place(node, rank, tasks_per_node) for node in range(nodes) for rank in range(tasks_per_node)]
    tasks = [subprocess.Popen(options.command, env=slurm_environment({**step, **where})) for where in places]
    while None in (statuses := [task.poll() for task in tasks]):
        if options.kill_on_bad_exit and any(statuses):
            kill(tasks)
        time.sleep(0.05)
    # After a signal, the status here is the negative number of the signal; in a shell and in Slurm it is 128 + number.
    return max(status if status >= 0 else 128 - status for status in statuses)


def place(node: int, local_rank: int, tasks_per_node: int) -> dict[str, object]:
    first = node * tasks_per_node
    return {
        "NODEID": node,
        "LOCALID": local_rank,
        "PROCID": first + local_rank,
        "GTIDS": ",".join(str(first + other) for other in range(tasks_per_node)),
        "TOPOLOGY_ADDR": f"n{node + 1}",
    }


def slurm_environment(variables: dict[str, object]) -> dict[str, str]:
    """This process's environment with `variables`, whose names lack the prefix SLURM_, and the name of the node."""
    named = {f"SLURM_{name}": str(value) for name, value in variables.items()}
    return {**os.environ, **named, "SLURMD_NODENAME": named["SLURM_TOPOLOGY_ADDR"], "HOSTNAME": "n1"}


def each(count: int, nodes: int) -> str:  # Slurm's notation for the same number on all nodes
    return str(count) if nodes == 1 else f"{count}(x{nodes})"


def kill(tasks: list[subprocess.Popen]) -> None:
    for task in tasks:
        task.terminate()
    deadline = time.monotonic() + SECONDS_TO_KILL
    while any(task.poll() is None for task in tasks) and time.monotonic() < deadline:
        time.sleep(0.05)
    for task in tasks:
        task.kill()


if __name__ == "__main__":
    sys.exit({"sbatch": sbatch, "srun": srun}[sys.argv[1]](sys.argv[2:]))
