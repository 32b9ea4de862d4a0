"""Simulated nodes on this machine: network namespaces, each with its own host name, address and loopback.

As on several machines, a node can't reach the loopback of another node. The nodes share files and processors. A switch,
which is also a namespace, connects them. Needs root and iproute2.
"""

import os
import signal
import subprocess
from pathlib import Path

NETWORK = "10.77.{}.{}"
NAMES = ("n1", "n2")


class Nodes:
    """Two nodes and the switch that connects them. `folder` gets a hosts file with the nodes' names."""

    def __init__(self, folder: Path, number: int) -> None:
        """`number`: 0 to 255; pairs of nodes that exist at the same time need different numbers."""
        self.folder, self.number = folder, number
        self.addresses = [NETWORK.format(number, host) for host in (1, 2)]
        self.namespaces = [f"nodes{number}-{name}" for name in NAMES]
        self.switch = f"nodes{number}-switch"

    def start(self) -> None:
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


def call(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)
