"""How TensorFlow's processes find each other when a launcher has started them."""

import json
import os

from common.platform.launch import Launch
from common.platform.rendezvous import addresses


def prepare_rendezvous(launch: Launch) -> None:
    """Sets the environment variable TF_CONFIG, which tells TensorFlow the addresses of the launcher's processes."""
    if launch.started_by == "TF_CONFIG":
        return
    workers = [f"{host}:{port}" for host, port in addresses(launch)]
    task = {"type": "worker", "index": launch.rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
