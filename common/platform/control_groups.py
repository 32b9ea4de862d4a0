"""Limits of CPU and memory that a container or a scheduler sets: Linux's control groups, version 2.

Source, in the kernel's Documentation: admin-guide/cgroup-v2.rst (cpu.max, cpu.stat, memory.max).
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


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
