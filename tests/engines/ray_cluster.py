"""A Ray cluster of two nodes on this one machine.

    python tests/engines/ray_cluster.py start FOLDER      starts it, and prints the lines that make a shell use it
    python tests/engines/ray_cluster.py stop FOLDER       ends it

The nodes have their own loopback addresses, 127.0.0.1 and 127.0.0.2. Each has two CPUs, whatever the machine has. Ray
writes its files to a temporary folder, because the paths of its sockets must be short. `stop` removes that folder.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

ADDRESSES = ("127.0.0.1", "127.0.0.2")
CPUS = 2
# Ray asks for a token if an earlier Ray cluster, started for a single program, has left one in the user's folder.
ENVIRONMENT = {"RAY_AUTH_MODE": "disabled"}
SECONDS_TO_START, SECONDS_TO_STOP = 90, 3
PORTS_OF_HEAD = ("port", "dashboard-port", "ray-client-server-port")  # that must be free


def main() -> None:
    parser = argparse.ArgumentParser(description="A Ray cluster of two nodes on this one machine.")
    parser.add_argument("action", choices=("start", "stop"))
    parser.add_argument("folder", type=Path, help="where it is written what was started")
    options = parser.parse_args()
    if options.action == "start":
        for name, value in start(options.folder).items():
            print(f"export {name}={value}")
    else:
        stop(options.folder)


def start(folder: Path) -> dict[str, str]:
    """Starts the cluster; returns the environment variables with which programs use it."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "ray.json").exists():
        raise SystemExit(f"error: {folder} has a cluster already: stop it first")
    temporary = tempfile.mkdtemp(prefix="ray-")
    ports = dict(zip(PORTS_OF_HEAD, free_ports(len(PORTS_OF_HEAD)), strict=True))
    started: dict[str, object] = {"temporary": temporary, "processes": []}
    (folder / "ray.json").write_text(json.dumps(started))
    head = ["--head", "--include-dashboard=true", f"--temp-dir={temporary}"]
    head += [f"--{name}={port}" for name, port in ports.items()]
    address = f"{ADDRESSES[0]}:{ports['port']}"
    try:
        for node, words in zip(ADDRESSES, (head, [f"--address={address}"]), strict=True):
            command = [*words, f"--node-ip-address={node}", f"--num-cpus={CPUS}", "--num-gpus=0"]
            call(["start", *command, "--object-store-memory=100000000", "--disable-usage-stats"])
    finally:
        started["processes"] = [
            {"pid": process.pid, "begin": process.create_time()}
            for process in psutil.process_iter()
            if any(temporary in word or address in word for word in arguments(process))
        ]
        (folder / "ray.json").write_text(json.dumps(started))
    dashboard = f"http://{ADDRESSES[0]}:{ports['dashboard-port']}"
    return {"RAY_ADDRESS": address, "RAY_API_SERVER_ADDRESS": dashboard, **ENVIRONMENT}


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server((ADDRESSES[0], 0)) for _ in range(count)]  # open together, so they differ
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def call(words: list[str]) -> None:
    """Runs `ray WORDS`; ends this program if that fails."""
    command = [sys.executable, "-m", "ray.scripts.scripts", *words]
    environment = {**os.environ, **ENVIRONMENT}
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_TO_START, env=environment)
    if done.returncode:
        raise SystemExit(f"error: {' '.join(command)}: {done.stdout}\n{done.stderr}")


def arguments(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def stop(folder: Path) -> None:
    """Ends the processes that `start` has started and their child processes, and no others."""
    if not (folder / "ray.json").exists():
        raise SystemExit(f"error: {folder} has no cluster")
    started = json.loads((folder / "ray.json").read_text())
    ours = []
    for one in started["processes"]:
        if psutil.pid_exists(one["pid"]):
            process = psutil.Process(one["pid"])
            if process.create_time() == one["begin"]:
                ours += [process, *process.children(recursive=True)]
    for process in ours:
        end(process, signal.SIGTERM)
    _, left = psutil.wait_procs(ours, SECONDS_TO_STOP)
    for process in left:
        end(process, signal.SIGKILL)
    time.sleep(0.2)
    shutil.rmtree(started["temporary"], ignore_errors=True)
    (folder / "ray.json").unlink()


def end(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)


if __name__ == "__main__":
    main()
