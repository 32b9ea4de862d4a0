"""The NVIDIA GPUs of this machine, and why a framework can't use them."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

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
    """Why the framework in this process sees no GPU although the machine has one, and what to do about it.

    Args:
      cuda: the version of CUDA that the framework is built for, such as `12.5.1`; None: it is built without.
    """
    if cuda is None:
        return f"it is built without CUDA; {CURE}"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in ("", "-1"):
        return f"CUDA_VISIBLE_DEVICES is {hidden!r}, which hides all GPUs; unset it"
    needed, supported = int(cuda.partition(".")[0]), _driver_cuda()
    if supported is not None and supported[0] < needed:
        return f"it needs CUDA {needed}, and the driver supports CUDA {supported[0]}.{supported[1]}; update the driver"
    if not _has_runtime(needed):
        return f"its environment, {sys.prefix}, has no CUDA {needed} libraries; {CURE}"
    return "the reason is unknown; what the framework prints when it looks for GPUs may name it"


def _driver_cuda() -> tuple[int, int] | None:
    """The version of CUDA that the driver supports; None if the driver does not say."""
    import pynvml

    try:
        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetCudaDriverVersion()
    except pynvml.NVMLError:
        return None
    return version // 1000, version % 1000 // 10


def _has_runtime(version: int) -> bool:
    """Whether the CUDA runtime can be loaded, from the environment's packages or from the system."""
    name = f"libcudart.so.{version}"
    found = [path for folder in map(Path, sys.path) for path in folder.glob(f"nvidia/*/lib/{name}")]
    try:
        ctypes.CDLL(str(found[0]) if found else name)
    except OSError:
        return False
    return True
