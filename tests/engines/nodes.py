"""Simulated nodes on this machine: network namespaces, each with its own host name, address and loopback.

    python tests/engines/nodes.py start FOLDER           makes n1 and n2
    python tests/engines/nodes.py run FOLDER n1 COMMAND  runs a command on one of them
    python tests/engines/nodes.py stop FOLDER            removes them, and kills the processes on them

As on several machines, a node can't reach the loopback of another node. The nodes share files and processors. A switch,
which is also a namespace, connects them. FOLDER gets a hosts file with the nodes' names. Needs root and iproute2.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

NETWORK = "10.77.{}.{}"
NAMES = ("n1", "n2")


class Nodes:
    """Two nodes and the switch that connects them.

    Attributes:
      addresses: the IP addresses of the nodes, in the order of `NAMES`.
    """

    def __init__(self, folder: Path, number: int) -> None:
        """`number`: 0 to 255; pairs of nodes that exist at the same time need different numbers."""
        self.folder, self.number = folder, number
        self.addresses = [NETWORK.format(number, host) for host in (1, 2)]
        self.namespaces = [f"nodes{number}-{name}" for name in NAMES]
        self.switch = f"nodes{number}-switch"

    def start(self) -> None:
        for program in ("ip", "unshare"):
            if shutil.which(program) is None:
                raise SystemExit(f"error: {program} is missing: apt-get install iproute2 util-linux")
        if os.geteuid() != 0:
            raise SystemExit("error: must be root: only root can make networks")
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = [f"{address} {name}" for address, name in zip(self.addresses, NAMES, strict=True)]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        call("ip", "netns", "add", self.switch)
        call("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        call("ip", "-n", self.switch, "link", "set", "bridge", "up")
        for name, namespace, address in zip(NAMES, self.namespaces, self.addresses, strict=True):
            link = f"v{self.number}-{name}"
            call("ip", "netns", "add", namespace)
            call("ip", "-n", namespace, "link", "add", link, "type", "veth", "peer", "name", name, "netns", self.switch)
            call("ip", "-n", self.switch, "link", "set", name, "master", "bridge", "up")
            call("ip", "-n", namespace, "address", "add", f"{address}/24", "dev", link)
            call("ip", "-n", namespace, "link", "set", link, "up")
            call("ip", "-n", namespace, "link", "set", "lo", "up")
        (self.folder / "nodes.json").write_text(json.dumps({"number": self.number}))

    def command(self, name: str, *words: object) -> list[str]:
        """The command that runs `words` on the node."""
        inside = f'hostname {name} && mount --bind "{self.folder / "hosts"}" /etc/hosts && exec "$@"'
        namespace = self.namespaces[NAMES.index(name)]
        shell = ("unshare", "--uts", "--mount", "sh", "-c", inside, "sh")
        return ["ip", "netns", "exec", namespace, *shell, *map(str, words)]

    def stop(self) -> None:
        for namespace in (*self.namespaces, self.switch):
            found = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
            for pid in found.stdout.split():
                os.kill(int(pid), signal.SIGKILL)
            call("ip", "netns", "delete", namespace)
        (self.folder / "nodes.json").unlink()


def call(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"error: {' '.join(words)}: {done.stderr.strip()}")


def main(action: str, folder: str, *words: str) -> None:
    path = Path(folder).resolve()
    if action == "start":
        Nodes(path, os.getpid() % 256).start()
        return
    nodes = Nodes(path, json.loads((path / "nodes.json").read_text())["number"])
    if action == "stop":
        nodes.stop()
    else:
        command = nodes.command(*words)
        os.execvp(command[0], command)


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("start", "run", "stop"):
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
