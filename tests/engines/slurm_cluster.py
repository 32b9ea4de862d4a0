"""A Slurm cluster of two nodes, n1 and n2, on this one machine, for job files and several nodes.

    python tests/engines/slurm_cluster.py start FOLDER      starts it, and prints the line that makes a shell use it
    python tests/engines/slurm_cluster.py stop FOLDER       ends its jobs and then its processes

Needs root and Debian's packages slurmctld, slurmd, slurm-client and munge. All files of the cluster are in FOLDER: key,
sockets, configuration, state, logs. For Slurm each node has 16 CPUs and two GPUs, whatever the machine has.
"""

import argparse
import json
import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sinfo", "squeue", "scancel")
SECONDS_TO_START = 60
SECONDS_TO_STOP = 60

CONFIGURATION = """\
ClusterName=course
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
SlurmdSpoolDir={folder}/%n
StateSaveLocation={folder}/state
# No control groups, which containers do not have: processes are found as children, and bound to no core.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
# The nodes have as many CPUs as is written here, whatever the machine has.
SlurmdParameters=config_overrides
# What does not start has failed, and does not wait for somebody to look into it.
JobRequeue=0
# A job's number decides its port: two clusters on this machine shall not have the same.
FirstJobId={first_job}
# Jobs begin at once, not up to three seconds later.
SchedulerParameters=batch_sched_delay=0
# Seconds between SIGTERM and SIGKILL.
KillWait=2
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=16 Gres=gpu:2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=16 Gres=gpu:2
PartitionName=all Nodes=ALL Default=YES
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="A Slurm cluster of two nodes on this one machine.")
    parser.add_argument("action", choices=("start", "stop"))
    parser.add_argument("folder", type=Path, help="where everything of the cluster lies")
    options = parser.parse_args()
    folder = options.folder.resolve()
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    if options.action == "start":
        start(folder)
        print(f"export SLURM_CONF={folder}/slurm.conf")
    else:
        stop(folder)


# --- Start ---


def start(folder: Path) -> None:
    os.environ["PATH"] += ":/usr/sbin:/sbin"  # the folders of the daemons, which not every PATH has
    for program in PROGRAMS:
        if shutil.which(program) is None:
            raise SystemExit(f"error: {program} is missing: apt-get install slurmctld slurmd slurm-client munge")
    if os.geteuid() != 0:
        raise SystemExit("error: must be root: slurmd starts the processes of jobs for others")
    if (folder / "processes.json").exists():
        raise SystemExit(f"error: {folder} has a cluster already: stop it first")
    configure(folder)
    # The daemons stay in the foreground, so that their pids are known. --force: other users need no access to the
    # socket's folder.
    munged = f"munged --foreground --force --key-file={folder}/munge.key --seed-file={folder}/munge.seed"
    munged += f" --socket={folder}/munge.socket --pid-file={folder}/munge.pid --log-file={folder}/munge.log"
    processes: list[psutil.Popen] = []
    try:
        for command in (munged, "slurmctld -D -c", "slurmd -D -N n1", "slurmd -D -N n2"):
            with open(folder / "daemons.out", "a") as output:
                words = command.split()
                streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
                processes.append(psutil.Popen(words, **streams, start_new_session=True))
            wait_for((folder / "munge.socket").exists, processes, folder)  # the others fail without it
        wait_for(lambda: node_states() == ["idle", "idle"], processes, folder)
    except BaseException:
        for process in reversed(processes):
            process.terminate()
            process.wait()
        raise
    (folder / "processes.json").write_text(json.dumps([(each.pid, each.create_time()) for each in processes]))


def configure(folder: Path) -> None:
    too_long = len(f"{folder}/n1/n1_1000000.4294967291") - 107  # the longest path of Slurm's sockets; Linux's limit
    if too_long > 0:
        raise SystemExit(f"error: {folder}: its name is {too_long} characters too long for Slurm's sockets in it")
    (folder / "state").mkdir(parents=True, exist_ok=True)
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]  # open together, so the ports differ
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    values = {"folder": folder, "host": socket.gethostname().partition(".")[0], "ports": ports}
    configuration = CONFIGURATION.format(**values, first_job=random.randrange(1, 1_000_000))
    (folder / "slurm.conf").write_text(configuration)
    # Any two files serve as GPUs: Slurm only counts them.
    (folder / "gres.conf").write_text(f"NodeName=n[1-2] Name=gpu File={folder}/gpu[0-1]\n")
    for gpu in ("gpu0", "gpu1"):
        (folder / gpu).touch()


def node_states() -> list[str]:
    """The states of the nodes; empty as long as slurmctld does not answer."""
    return subprocess.run(["sinfo", "-h", "-N", "-o", "%t"], capture_output=True, text=True).stdout.split()


def wait_for(condition: Callable[[], bool], processes: list[psutil.Popen], folder: Path) -> None:
    """Waits for the condition; ends this program if one of `processes` has ended, or after SECONDS_TO_START."""
    deadline = time.monotonic() + SECONDS_TO_START
    while not condition():
        if time.monotonic() > deadline or any(process.poll() is not None for process in processes):
            raise SystemExit(f"error: the cluster does not start:\n{(folder / 'daemons.out').read_text()[-2000:]}")
        time.sleep(0.1)


# --- Stop ---


def stop(folder: Path) -> None:
    """Ends all jobs and the processes that `start` has started, and no others; fails if one of them does not end."""
    if not (folder / "processes.json").exists():
        raise SystemExit(f"error: {folder} has no cluster")
    deadline = time.monotonic() + SECONDS_TO_STOP  # for jobs, whose processes are not children of the daemons
    while jobs := subprocess.run(["squeue", "-h", "-o", "%i"], capture_output=True, text=True).stdout.split():
        if time.monotonic() > deadline:
            break
        subprocess.run(["scancel", *jobs])
        time.sleep(0.2)
    started = json.loads((folder / "processes.json").read_text())
    left = []
    for pid, created in reversed(started):
        if psutil.pid_exists(pid) and abs(psutil.Process(pid).create_time() - created) < 5:  # pids are reused
            left.append(psutil.Process(pid))
            left[-1].terminate()
    alive = psutil.wait_procs(left, timeout=SECONDS_TO_STOP)[1]
    if jobs or alive:
        raise SystemExit(f"error: {[*jobs, *alive]} did not end; see the logs in {folder}")
    (folder / "processes.json").unlink()


if __name__ == "__main__":
    main()
