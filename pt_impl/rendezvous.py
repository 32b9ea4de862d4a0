"""How PyTorch's processes find each other when a launcher has started them."""

import os
import socket

import torch.distributed as dist

from common.platform.errors import UserError
from common.platform.launch import Launch
from common.platform.rendezvous import LOOPBACK, find_rendezvous


def prepare_rendezvous(launch: Launch) -> None:
    """Tells this process where the launcher's processes find each other, as torchrun does for its own processes."""
    if launch.started_by == "torchrun":
        return
    host, port = find_rendezvous(launch)
    if launch.is_first:
        host_store(LOOPBACK if launch.num_nodes == 1 else "", port)
    tell_rendezvous(host, port)


def tell_rendezvous(host: str, port: int) -> None:
    """Sets the environment variables with which torchrun gives the address of its store."""
    os.environ.update(MASTER_ADDR=host, MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True")


hosted: list[dist.TCPStore] = []  # each serves until this process ends


def host_store(address: str, port: int = 0) -> int:
    """Starts the store through which the replicas find each other; torch's own store could be reached by anybody.

    Args:
      address: the address to listen at; "": all addresses of this machine.
      port: the port to listen at; 0: any free one.

    Returns:
      The port.

    Raises:
      UserError: the port is taken.
    """
    try:
        listener = socket.create_server((address, port))
    except OSError as error:
        raise UserError(f"MASTER_PORT {port}: {error.strerror}; another one may be free") from None
    port = listener.getsockname()[1]
    descriptor = listener.detach()  # the store owns it from now on
    hosted.append(dist.TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor))
    return port
