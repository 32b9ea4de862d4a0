"""Facts about the machine (processor, cores, limits), about processes, and about the code: its digest and commit."""

import hashlib
import os
import platform
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
from pydantic import BaseModel

from common.platform.files import Count
from common.platform.processor import cpu_name as cpu_name

REPOSITORY = Path(__file__).resolve().parents[2]
GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


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


# --- NVIDIA GPUs, and why a framework can't use them ---

INSTALL_ADVICE = f"`make environments` in {REPOSITORY} installs what it needs"


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
        return f"it is built without CUDA; {INSTALL_ADVICE}"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in ("", "-1"):
        return f"CUDA_VISIBLE_DEVICES is {hidden!r}, which hides all GPUs; unset it"
    driver = "a driver that supports them (nvidia-smi names its CUDA)"
    return f"it needs the libraries of CUDA {cuda} ({INSTALL_ADVICE}) and {driver}"


# --- Limits of CPU and memory that a container or a scheduler sets: Linux's control groups, version 2 ---

# Source, in the kernel's Documentation: admin-guide/cgroup-v2.rst (cpu.max, cpu.stat, memory.max).


def cpu_quota(groups: Path = GROUPS, own: Path = OWN_GROUPS) -> float | None:
    """The CPU limit of this process's control groups in cores, as in `docker run --cpus`; None if there is none."""
    quotas = []
    for folder in _folders(groups, own):
        with suppress(OSError, ValueError):  # no such file, or "max": this group has no limit
            quota, period = map(int, (folder / "cpu.max").read_text().split())
            quotas.append(quota / period)
    return min(quotas, default=None)


def cpu_periods(groups: Path = GROUPS, own: Path = OWN_GROUPS) -> tuple[int, int] | None:
    """Number of scheduler periods so far, and number of periods in which the limit has stopped the processes.

    A period usually lasts 100 ms. The numbers are those of the group that was stopped most. None if there is no limit.
    """
    counters = []
    for folder in _folders(groups, own):
        with suppress(OSError):
            statistics = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
            counters.append((int(statistics.get("nr_throttled", 0)), int(statistics.get("nr_periods", 0))))
    stopped, periods = max(counters, default=(0, 0))
    return (periods, stopped) if periods else None


def control_group_memory_left(groups: Path = GROUPS, own: Path = OWN_GROUPS) -> int | None:
    """Bytes that this process's control groups may still use, as with `docker run --memory`; None without a limit.

    What the page cache holds counts as free, since the kernel gives it up.
    """
    left = []
    for folder in _folders(groups, own):
        with suppress(OSError, ValueError):  # no such file, or "max": this group has no limit
            limit, used = (int((folder / f"memory.{name}").read_text()) for name in ("max", "current"))
            counters = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            left.append(limit - used + int(counters.get("file", 0)))
    return min(left, default=None)


def _folders(groups: Path, own: Path) -> Iterator[Path]:
    """Folders of this process's control group and of the groups that contain it."""
    for line in own.read_text().splitlines() if own.exists() else []:  # elsewhere than on Linux
        number, _, path = line.split(":", 2)
        if number == "0":
            inner = Path(path.lstrip("/"))
            # In a container the path may be the host's and not exist here. The root is the container's own group then.
            for part in (inner, *inner.parents):
                yield groups / part


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
