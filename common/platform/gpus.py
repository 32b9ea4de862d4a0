"""The NVIDIA GPUs of this machine, and why a framework can't use them."""

import os
import shutil
import subprocess

from common.platform.machine import REPOSITORY

CURE = f"`make environments` in {REPOSITORY} installs what it needs"


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU, even if no framework can use it."""
    if shutil.which("nvidia-smi") is None:
        return False
    try:
        return "GPU " in subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False


def list_gpus() -> list[str]:
    """Name and driver of each NVIDIA GPU."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


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
