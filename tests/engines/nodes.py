"""Simulated nodes on this machine: network namespaces, each with its own host name, address and loopback.

As on several machines, a node can't reach the loopback of another node. The nodes share files and processors. A pair of
virtual network devices connects them. Needs root and iproute2.
"""

import os
import signal
import subprocess
from pathlib import Path

NETWORK = "10.77.{}.{}"
NAMES = ("n1", "n2")


class Nodes:
    """Two nodes. `folder` gets a hosts file with their names."""

    def __init__(self, folder: Path, number: int) -> None:
        """`number`: 0 to 255; pairs of nodes that exist at the same time need different numbers."""
        self.folder = folder
        self.addresses = [NETWORK.format(number, host) for host in (1, 2)]
        self.namespaces = [f"nodes{number}-{name}" for name in NAMES]

    def start(self) -> None:
        lines = [f"{address} {name}" for address, name in zip(self.addresses, NAMES, strict=True)]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        first, second = self.namespaces
        call("ip", "netns", "add", first)
        call("ip", "netns", "add", second)
        call("ip", "-n", first, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", second)
        for namespace, address in zip(self.namespaces, self.addresses, strict=True):
            call("ip", "-n", namespace, "address", "add", f"{address}/24", "dev", "eth0")
            call("ip", "-n", namespace, "link", "set", "eth0", "up")
            call("ip", "-n", namespace, "link", "set", "lo", "up")

    def command(self, name: str, *words: object) -> list[str]:
        """The command that runs `words` on the node."""
        inside = f'hostname {name} && mount --bind "{self.folder / "hosts"}" /etc/hosts && exec "$@"'
        namespace = self.namespaces[NAMES.index(name)]
        shell = ("unshare", "--uts", "--mount", "sh", "-c", inside, "sh")
        return ["ip", "netns", "exec", namespace, *shell, *map(str, words)]

    def stop(self) -> None:
        for namespace in self.namespaces:
            found = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
            for pid in found.stdout.split():
                os.kill(int(pid), signal.SIGKILL)
            call("ip", "netns", "delete", namespace)


def call(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)
