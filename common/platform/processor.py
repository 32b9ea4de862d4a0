"""The processor: its name, what it announces, and whether half precision works with all of it.

Some virtual machines announce AMX, but SIGILL ends a program that executes it. The kernel of such a machine grants the
permission to use AMX too, so only executing it shows whether it works: a separate process tries it before a run relies
on it. TensorFlow and PyTorch multiply in half precision with oneDNN, which an environment variable keeps from using it.
"""

import hashlib
import importlib.metadata
import os
import platform
import re
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.platform.errors import FileError
from common.platform.files import user_cache, write_text
from common.platform.launch import Launch

CPUINFO = Path("/proc/cpuinfo")  # Linux only; elsewhere the announced instruction sets are unknown
AMX = {"amx_bf16", "amx_fp16"}  # x86 instruction sets for bfloat16 and float16, with Linux's names
HALF_PRECISIONS = ("bf16-mixed", "16-mixed")
LIMIT_VARIABLE = "ONEDNN_MAX_CPU_ISA"  # oneDNN reads it at its first computation (its page "CPU Dispatcher Control")
ISA_WITHOUT_AMX = "AVX512_CORE_FP16"  # oneDNN's name of the highest instructions without AMX
AMX_WORKS = "works"  # what the user's cache folder has if no limit is needed
TIMEOUT_SECONDS = 120


# --- What the processor announces ---


def cpuinfo(names: str) -> str:
    """The value in /proc/cpuinfo of a name, or of `one|another`; all processors have the same. Empty if unknown."""
    line = re.search(rf"^(?:{names})\s*:(.*)", CPUINFO.read_text() if CPUINFO.exists() else "", re.MULTILINE)
    return line[1].strip() if line else ""


def cpu_flags() -> frozenset[str]:
    """The features that the processor announces, with Linux's names; empty if they are unknown."""
    return frozenset(cpuinfo("flags|Features").split())  # "Features" on Arm


def cpu_has_bf16() -> bool:
    """Whether the processor announces instructions for bfloat16 products; these are then faster than float32."""
    return not cpu_flags().isdisjoint({"avx512_bf16", "amx_bf16", "bf16"})  # "bf16" on Arm


def cpu_name() -> str:
    """The processor's name as the system reports it."""
    return cpuinfo("model name") or platform.processor() or platform.machine()


# --- What works ---


def processor_note() -> str | None:
    """A message about the instruction sets that a run on this processor uses; None if it may use all of them."""
    limit, why = os.environ.get(LIMIT_VARIABLE), "as set in the environment"
    if not limit:
        return None
    if limit == ISA_WITHOUT_AMX:
        why = "since half precision crashes (SIGILL) on others that this processor claims to have"
    return f"instructions up to {limit} ({LIMIT_VARIABLE}), {why}"


def try_out(precision: str, package: str, probe_module: str) -> None:
    """Sets `ONEDNN_MAX_CPU_ISA` for this process and its child processes, if half precision needs a limit here.

    The test runs once per machine and version of the framework: the finding is stored in the user's cache folder, on
    Linux `XDG_CACHE_HOME` or `~/.cache`. Nothing is tested if the processor announces no such instructions, or if the
    user has already set a limit. Must run before the framework's first computation.

    Args:
      package: the framework's package, such as `torch`.
      probe_module: `python -m <probe_module> <precision>` multiplies two matrices in it, and exits with 0.
    """
    if cpu_flags().isdisjoint(AMX) or os.environ.get(LIMIT_VARIABLE):
        return
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # another build, such as a nightly; a missing one is told later
        return
    machine = hashlib.sha256(repr((platform.node(), cpu_name(), sorted(cpu_flags()))).encode()).hexdigest()[:16]
    cache = user_cache() / "half-precision" / "-".join((package, version, precision, machine))
    finding = None
    with suppress(OSError):  # there is none yet, or it can't be read
        finding = cache.read_text(errors="replace").strip()
    if finding not in (AMX_WORKS, ISA_WITHOUT_AMX):
        if Launch.read().is_first:
            print(f"trying out {precision} on this processor, once for {package} {version}", flush=True)
        finding = _probe([sys.executable, "-m", probe_module, precision])
        if finding is None:
            return
        # If this folder can't be written to, each start repeats the test, which takes a few seconds. No run fails.
        with suppress(OSError, FileError):
            cache.parent.mkdir(parents=True, exist_ok=True)
            write_text(cache, finding + "\n")
    if finding == ISA_WITHOUT_AMX:
        os.environ[LIMIT_VARIABLE] = ISA_WITHOUT_AMX
        if Launch.read().is_first:
            print(f"note: {processor_note()}", flush=True)


def _probe(command: list[str]) -> str | None:
    """The finding, from a process that is tried; None if a failure has an unclear cause: the run will show it."""
    # One thread: if the cores are busy, several threads spin for minutes. No GPU: this tests the processor.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)

    def keep_no_core() -> None:  # a crash is a valid answer
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    try:
        status = subprocess.call(command, env=environment, timeout=TIMEOUT_SECONDS, preexec_fn=keep_no_core, **quiet)
    except subprocess.TimeoutExpired:
        return None
    return {0: AMX_WORKS, -signal.SIGILL: ISA_WITHOUT_AMX}.get(status)
