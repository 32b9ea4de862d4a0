"""The NVIDIA GPUs of this machine, and why a framework can't use them."""

import os
import subprocess

from common.platform.machine import REPOSITORY

CURE = f"`make environments` in {REPOSITORY} installs what it needs"


def list_gpus() -> list[str]:
    """Name and driver of each NVIDIA GPU of this machine, even if no framework can use it."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []


def has_gpu() -> bool:
    return bool(list_gpus())


def why_no_gpu(cuda: str | None) -> str:
    """Why the framework in this process may see no GPU although the machine has one, and what to do about it.

    Args:
      cuda: the version of CUDA that the framework is built for, such as `12.5.1`; None: it is built without.
    """
    if cuda is None:
        return f"it is built without CUDA; {CURE}"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in ("", "-1"):
        return f"CUDA_VISIBLE_DEVICES is {hidden!r}, which hides all GPUs; unset it"
    return f"it needs the libraries of CUDA {cuda} ({CURE}) and a driver that supports them (nvidia-smi names its CUDA)"
