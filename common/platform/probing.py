"""Half precision is tried out in a process of its own before a run relies on it.

Some virtual machines announce AMX, and a program that executes it is ended by SIGILL. There the kernel grants the
permission to use AMX too, so that only executing it tells. In TensorFlow and PyTorch the products of bfloat16 are
oneDNN's, which can be held to lower instruction sets by an environment variable.
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
# From the highest to the lowest, oneDNN's names. None: no limit.
LIMITS = (None, "AVX512_CORE_AMX", "AVX512_CORE_FP16", "AVX512_CORE_BF16", "AVX512_CORE", "AVX2")
# Tells the processes that this one starts what was found.
FINDING_VARIABLE = "HALF_PRECISION_FINDING"
HALF_PRECISIONS = ("bf16-mixed", "16-mixed")
TIMEOUT_SECONDS = 120
# Sent by somebody, or by the system where memory is short: they say nothing about the processor.
FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


class Finding(BaseModel):
    """What trying out has shown.

    Attributes:
      works: whether half precision works, within the limit.
      limit: the highest instruction set with which it does, oneDNN's name; null where no limit is needed or none helps.
      died_of: the signal that ended it without a limit; null where none did.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    works: bool
    limit: str | None = None
    died_of: int | None = None

    @property
    def note(self) -> str | None:
        """For people; None where the processor executes what it announces."""
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
        """Of this process or the one that started it; None where nothing was tried out."""
        text = os.environ.get(FINDING_VARIABLE)
        return cls.model_validate_json(text) if text else None


def limit_in_force() -> str | None:
    """The highest instruction set that oneDNN may use, set by the user or by `try_out`; None: no limit."""
    return next((os.environ[name] for name in LIMIT_VARIABLES if os.environ.get(name)), None)


def processor_note() -> str | None:
    """What is to be told of the instructions that a run on this processor uses; None: it uses all that there are."""
    finding, limit = Finding.current(), limit_in_force()
    if finding and finding.note:
        return finding.note
    return f"instructions up to {limit} ({LIMIT_VARIABLES[0]}), as set in the environment" if limit else None


# --- Before the framework is imported ---


def try_out(precisions: Sequence[str], package: str, probe_module: str) -> None:
    """Sets `ONEDNN_MAX_CPU_ISA` for this process and those it starts, if half precision needs a limit here.

    Once per machine and version of the framework: the finding is kept in the user's folder for caches. Does nothing
    where the processor announces no such instructions, and where the user has set a limit already. Must run before
    the framework's first computation.

    Args:
      package: of the framework, `torch`.
      probe_module: `python -m <probe_module> <precision> ...` computes in these precisions and exits with 0.
    """
    if not announced() or limit_in_force() or os.environ.get(FINDING_VARIABLE):
        return
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return  # importing it will tell
    cache = _cache_file(precisions, package, version, probe_module)
    finding = _read(cache)
    if finding is None:
        if Launch.read().is_first:
            print(f"trying out {' and '.join(precisions)} on this processor, once for {package} {version}", flush=True)
        finding = _probe(precisions, probe_module)
        if finding is None:
            return
        # A folder that can't be written to costs a few seconds at each start, and no run.
        with suppress(OSError):
            cache.parent.mkdir(parents=True, exist_ok=True)
            write_text(cache, finding.model_dump_json() + "\n")
    os.environ[FINDING_VARIABLE] = finding.model_dump_json()
    if finding.limit:
        os.environ[LIMIT_VARIABLES[0]] = finding.limit
        if Launch.read().is_first:
            print(f"note: {finding.note}", flush=True)


def _probe(precisions: Sequence[str], probe_module: str) -> Finding | None:
    """The highest limit with which the probe lives; None where it can't be told: the run itself will show why."""
    died_of = None
    for limit in LIMITS:
        status = _run_probe(precisions, probe_module, limit)
        if status is None or -status in FROM_OUTSIDE or (limit is None and status not in (0, -signal.SIGILL)):
            return None
        if status == 0:
            return Finding(works=True, limit=limit, died_of=died_of)
        # With a limit an error counts too: frameworks refuse what an instruction set is too low for.
        died_of = died_of or -status
    return Finding(works=False, died_of=died_of)


def _run_probe(precisions: Sequence[str], probe_module: str, limit: str | None) -> int | None:
    """The exit status, below zero where a signal has ended it; None: it did not end in time."""
    # One thread: several spin for minutes where the cores are busy. No GPU: it is about the processor.
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
    """In `XDG_CACHE_HOME` or `~/.cache` on Linux. One for each machine, version of the framework and precision."""
    machine = [platform.node(), cpu_name(), sorted(cpu_flags())]
    key = json.dumps([*machine, probe_module, *precisions])
    folder = platformdirs.user_cache_path("cnn-in-lockstep") / "half-precision"
    return folder / f"{package}-{version}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def _read(cache: Path) -> Finding | None:
    """None where nothing was found yet, or the file is damaged: it is tried out again then."""
    try:
        return Finding.model_validate_json(cache.read_bytes())
    except (OSError, ValidationError):
        return None
