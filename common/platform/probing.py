"""Tests half precision on the CPU in a separate process before a run relies on it.

Some virtual machines announce AMX, but SIGILL ends a program that executes it. The kernel of such a machine grants the
permission to use AMX too, so only executing it shows whether it works. In TensorFlow and PyTorch oneDNN multiplies
bfloat16. An environment variable can limit oneDNN to lower instruction sets.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import platformdirs
from pydantic import BaseModel, ConfigDict, ValidationError

from common.platform.errors import signal_name
from common.platform.files import write_text
from common.platform.launch import Launch
from common.platform.processor import announced, cpu_flags, cpu_name

# oneDNN reads the first of them that is set (its page "CPU Dispatcher Control"), at its first computation.
LIMIT_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
# oneDNN's names of instruction sets, from the highest to the lowest. None: no limit.
LIMITS = (None, "AVX512_CORE_AMX", "AVX512_CORE_FP16", "AVX512_CORE_BF16", "AVX512_CORE", "AVX2")
# The environment variable that passes the finding on to child processes.
FINDING_VARIABLE = "HALF_PRECISION_FINDING"
HALF_PRECISIONS = ("bf16-mixed", "16-mixed")
TIMEOUT_SECONDS = 120
# Signals that a user sends, or the system when memory is short. They say nothing about the processor.
FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


class Finding(BaseModel):
    """The result of testing half precision.

    Attributes:
      works: whether half precision works, with the limit if there is one.
      limit: the highest instruction set with which it works, oneDNN's name; null if no limit is needed or none helps.
      died_of: number of the signal that ended the test without a limit; null if none did.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    works: bool
    limit: str | None = None
    died_of: int | None = None

    @property
    def note(self) -> str | None:
        """A message for the user; None if the processor executes what it announces."""
        if self.died_of is None:
            return None
        reason, signal_shown = "the processor fails on instructions that it claims to have", signal_name(self.died_of)
        if not self.works:
            return f"no half precision, since {reason}: it crashes ({signal_shown}) with every instruction set"
        return (
            f"instructions up to {self.limit} ({LIMIT_VARIABLES[0]}), since {reason}:"
            f" without this limit half precision crashes ({signal_shown})"
        )

    @classmethod
    def current(cls) -> Self | None:
        """The finding of this process or of the one that started it; None if nothing was tested."""
        text = os.environ.get(FINDING_VARIABLE)
        return cls.model_validate_json(text) if text else None


def limit_in_force() -> str | None:
    """The highest instruction set that oneDNN may use, set by the user or by `try_out`; None: no limit."""
    return next((os.environ[name] for name in LIMIT_VARIABLES if os.environ.get(name)), None)


def processor_note() -> str | None:
    """A message about the instruction sets that a run on this processor uses; None if it may use all of them."""
    finding, limit = Finding.current(), limit_in_force()
    if finding and finding.note:
        return finding.note
    return f"instructions up to {limit} ({LIMIT_VARIABLES[0]}), as set in the environment" if limit else None


# --- Before the framework is imported ---


def try_out(precisions: Sequence[str], package: str, probe_module: str) -> None:
    """Sets `ONEDNN_MAX_CPU_ISA` for this process and its child processes, if half precision needs a limit here.

    The test runs once per machine and version of the framework: the finding is stored in the user's cache folder.
    Nothing is tested if the processor announces no such instructions, or if the user has already set a limit. Must run
    before the framework's first computation.

    Args:
      package: the framework's package, such as `torch`.
      probe_module: `python -m <probe_module> <precision> ...` computes in these precisions and exits with 0.
    """
    if not announced() or limit_in_force() or os.environ.get(FINDING_VARIABLE):
        return
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return  # importing the framework will raise the error
    cache = _cache_file(precisions, package, version, probe_module)
    finding = _read(cache)
    if finding is None:
        if Launch.read().is_first:
            print(f"trying out {' and '.join(precisions)} on this processor, once for {package} {version}", flush=True)
        finding = _probe(precisions, probe_module)
        if finding is None:
            return
        # If this folder can't be written to, each start repeats the test, which takes a few seconds. No run fails.
        with suppress(OSError):
            cache.parent.mkdir(parents=True, exist_ok=True)
            write_text(cache, finding.model_dump_json() + "\n")
    os.environ[FINDING_VARIABLE] = finding.model_dump_json()
    if finding.limit:
        os.environ[LIMIT_VARIABLES[0]] = finding.limit
        if Launch.read().is_first:
            print(f"note: {finding.note}", flush=True)


def _probe(precisions: Sequence[str], probe_module: str) -> Finding | None:
    """The finding with the highest limit that works; None if a failure has an unclear cause: the run will show it."""
    died_of = None
    for limit in LIMITS:
        status = _run_probe(precisions, probe_module, limit)
        if status is None or -status in FROM_OUTSIDE or (limit is None and status not in (0, -signal.SIGILL)):
            return None
        if status == 0:
            return Finding(works=True, limit=limit, died_of=died_of)
        # With a limit an ordinary error is a failure too: frameworks refuse what the instruction set is too low for.
        died_of = died_of or -status
    return Finding(works=False, died_of=died_of)


def _run_probe(precisions: Sequence[str], probe_module: str, limit: str | None) -> int | None:
    """The exit status, negative if a signal has ended the probe; None if the probe did not end in time."""
    # One thread: if the cores are busy, several threads spin for minutes. No GPU: this tests the processor.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    if limit:
        environment[LIMIT_VARIABLES[0]] = limit
    try:
        return subprocess.run(
            [sys.executable, "-m", probe_module, *precisions],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT_SECONDS,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        return None


def _cache_file(precisions: Sequence[str], package: str, version: str, probe_module: str) -> Path:
    """The cache file for this machine, the framework's version and the precisions, in the user's cache folder.

    On Linux this folder is in `XDG_CACHE_HOME` or `~/.cache`.
    """
    machine = [platform.node(), cpu_name(), sorted(cpu_flags())]
    key = json.dumps([*machine, probe_module, *precisions])
    folder = platformdirs.user_cache_path("cnn-in-lockstep") / "half-precision"
    return folder / f"{package}-{version}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def _read(cache: Path) -> Finding | None:
    """Reads a stored finding. Returns None if there is none or the file is damaged; then the test is repeated."""
    try:
        return Finding.model_validate_json(cache.read_bytes())
    except (OSError, ValidationError):
        return None
