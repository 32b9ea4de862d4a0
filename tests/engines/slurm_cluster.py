"""A Slurm cluster of two nodes, n1 and n2, on this one machine, for job files and several nodes.

    python tests/engines/slurm_cluster.py start FOLDER      starts it, and prints the line that makes a shell use it
    python tests/engines/slurm_cluster.py stop FOLDER       ends its jobs and then its processes

Needs root and Debian's packages slurmctld, slurmd, slurm-client and munge. All files of the cluster are in FOLDER: key,
sockets, configuration, state, logs. For Slurm each node has 16 CPUs and two GPUs, whatever the machine has.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

MOST_SECONDS = 60  # for a start, and for jobs to end

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
    action, folder = sys.argv[1], Path(sys.argv[2]).resolve()
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    if action == "start":
        start(folder)
        print(f"export SLURM_CONF={folder}/slurm.conf")
    else:
        stop(folder)


def start(folder: Path) -> None:
    os.environ["PATH"] += ":/usr/sbin:/sbin"  # the folders of the daemons, which not every PATH has
    configure(folder)
    # --force: other users need no access to the socket's folder.
    munged = f"munged --force --key-file={folder}/munge.key --seed-file={folder}/munge.seed"
    munged += f" --socket={folder}/munge.socket --pid-file={folder}/munge.pid --log-file={folder}/munge.log"
    try:
        for command in (munged, "slurmctld -c", "slurmd -N n1", "slurmd -N n2"):
            with open(folder / "daemons.out", "a") as output:
                subprocess.run(command.split(), check=True, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        idle = ["sinfo", "-h", "-t", "idle", "-o", "%D"]
        if not became_true(lambda: subprocess.run(idle, capture_output=True, text=True).stdout == "2\n"):
            raise SystemExit(f"error: the cluster does not start; see the logs in {folder}")
    except BaseException:
        stop(folder)
        raise


def configure(folder: Path) -> None:
    (folder / "state").mkdir(parents=True, exist_ok=True)
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    with ExitStack() as opened:  # together, so the ports differ
        sockets = [opened.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        ports = [each.getsockname()[1] for each in sockets]
    values = {"folder": folder, "host": socket.gethostname().partition(".")[0], "ports": ports}
    configuration = CONFIGURATION.format(**values, first_job=random.randrange(1, 1_000_000))
    (folder / "slurm.conf").write_text(configuration)
    # Any two files serve as GPUs: Slurm only counts them.
    (folder / "gres.conf").write_text(f"NodeName=n[1-2] Name=gpu File={folder}/gpu[0-1]\n")
    for gpu in ("gpu0", "gpu1"):
        (folder / gpu).touch()


def stop(folder: Path) -> None:
    """Ends all jobs, whose processes are no children of the daemons, and then the daemons, by their files of ids."""

    def no_jobs() -> bool:
        jobs = subprocess.run(["squeue", "-h", "-o", "%i"], capture_output=True, text=True).stdout.split()
        if jobs:
            subprocess.run(["scancel", *jobs])
        return not jobs

    became_true(no_jobs)
    for path in folder.glob("*.pid"):
        os.kill(int(path.read_text()), signal.SIGTERM)
    if not became_true(lambda: not list(folder.glob("*.pid"))):  # a daemon removes its file at its end
        raise SystemExit(f"error: some processes did not end; see the logs in {folder}")


def became_true(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + MOST_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


if __name__ == "__main__":
    main()
