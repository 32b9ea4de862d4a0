"""Facts about the machine (processor, cores, memory), about processes, and about the code: its digest and commit."""

import hashlib
import os
import platform
import re
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil
from pydantic import BaseModel

from common.platform.control_groups import cpu_quota
from common.platform.files import Count
from common.platform.processor import cpu_name as cpu_name

REPOSITORY = Path(__file__).resolve().parents[2]


class Machine(BaseModel, frozen=True, extra="forbid"):
    """The machine on which a run was made, described without any framework.

    Attributes:
      hostname: does not identify a machine. Containers on one machine have different names, and two machines may have
        the same name.
      cores: number of cores that the run may use; `all_cores` is the number of all cores.
      system: the operating system with its kernel.
    """

    hostname: str
    processor: str
    cores: Count
    all_cores: Count
    memory_bytes: Count
    system: str

    def differences(self, other: "Machine") -> list[str]:
        """Lists the fields in which two machines differ: `cores: 2 and 4`. The hostname is not compared."""
        pairs = {name: (value, getattr(other, name)) for name, value in self if name != "hostname"}
        # The kernel reserves a slightly different amount of memory at each start.
        memory = tuple(round(one / 2**30) for one in pairs.pop("memory_bytes"))
        pairs = {name.replace("_", " "): pair for name, pair in pairs.items()} | {"memory GiB": memory}
        return [f"{name}: {one} and {two}" for name, (one, two) in pairs.items() if one != two]


def describe_machine() -> Machine:
    return Machine(
        hostname=platform.node() or "unknown",
        processor=cpu_name() or "unknown",
        cores=num_cores(),
        all_cores=os.cpu_count() or num_cores(),
        memory_bytes=psutil.virtual_memory().total,
        system=f"{platform.system()} {platform.release()}",
    )


def num_cores() -> int:
    """Number of CPU cores this process may use: those of its CPU affinity, at most a container's limit; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return cores if quota is None else max(1, min(cores, int(quota)))


def code_sha256() -> str:
    """Hex digest over the current Python files of all implementations, of `common` and of `networks`."""
    digest = hashlib.sha256()
    rooms = "common", "networks", "*_impl"
    for path in sorted(path for room in rooms for path in REPOSITORY.glob(f"{room}/**/*.py")):
        digest.update(f"{path.relative_to(REPOSITORY)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def git_state() -> dict[str, str | bool] | None:
    """{"commit": hex, "dirty": whether files differ from it}; None outside a git checkout."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(REPOSITORY), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != REPOSITORY:
            return None
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None


# --- Facts about a process ---


def process_start(pid: int) -> float:
    """Start time of process `pid`, in seconds on the clock of `time.perf_counter` of this process.

    On Linux it is read from the kernel's record (proc(5), field starttime, on the clock CLOCK_BOOTTIME), which is exact
    to 10 ms. Elsewhere it is read from the wall clock.
    """
    stat = Path(f"/proc/{pid}/stat")
    if stat.exists() and hasattr(time, "CLOCK_BOOTTIME"):
        # The second field, the name, may contain spaces; starttime is the 20th field after it.
        ticks = int(stat.read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    else:
        age = time.time() - psutil.Process(pid).create_time()
    return time.perf_counter() - age


def cpu_seconds(pid: int) -> float:
    """CPU seconds, user and system, of process `pid` and its running descendants."""
    total = 0.0
    for process in _family(pid):
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            times = process.cpu_times()
            total += times.user + times.system
    return total


def peak_memory_bytes(pid: int) -> int:
    """Sum of the peak resident memory of process `pid` and its running descendants, in bytes.

    On Linux the peak of a process is its high-water mark (VmHWM). Memory that processes share is counted in each of
    them. Elsewhere their current memory is used.
    """
    return sum(map(_peak, _family(pid)))


def _family(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def _peak(process: psutil.Process) -> int:
    status = Path(f"/proc/{process.pid}/status")
    try:
        if status.exists() and (peak := re.search(r"VmHWM:\s*(\d+)", status.read_text())):
            return int(peak[1]) * 1024
        return int(process.memory_info().rss)
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return 0  # it ended meanwhile
