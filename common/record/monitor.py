"""Measures load, CPU time, energy, and each GPU's use and memory while a run trains. What is unknown is None."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from common.platform.machine import cpu_seconds, num_cores, peak_memory_bytes

GPU_SAMPLE_SECONDS, LEAST_SECONDS = 0.5, 0.1
POWERCAP = Path("/sys/class/powercap")


class Monitor:
    """Measures from `resume` to `pause`, as often as they are called; energy only while `energy` is running.

    Args:
      first_pid: id of the run's first process; its descendants are included.
      num_gpus: number of GPUs that the run uses; 0 on the CPU.

    Attributes:
      latest: the load in the latest stretch of time from `resume` to `pause`, or in several of them that together are
        long enough to be measured.
    """

    def __init__(self, first_pid: int, num_gpus: int) -> None:
        self._first_pid = first_pid
        gpus = visible_gpus(num_gpus) if num_gpus else []
        self.energy = EnergyMeter((gpu_energy_counters(gpus) if gpus else []) if num_gpus else cpu_energy_counters())
        self._gpus = GpuSampler(gpus) if gpus else None
        self._since: tuple[float, float, float] | None = None
        self._seconds = self._own_seconds = self._other_seconds = 0.0
        self._recent = (0.0, 0.0, 0.0)
        self.latest = Load.of(*self._recent)

    def resume(self) -> None:
        self._since = time.perf_counter(), cpu_seconds(self._first_pid), machine_busy_seconds()
        if self._gpus:
            self._gpus.resume()

    def pause(self) -> None:
        if self._since is None:
            return
        before, self._since = self._since, None
        own = max(0.0, cpu_seconds(self._first_pid) - before[1])  # less if a process has ended
        other = max(0.0, machine_busy_seconds() - before[2] - own)
        seconds = time.perf_counter() - before[0]
        self._recent = (self._recent[0] + seconds, self._recent[1] + own, self._recent[2] + other)
        if self._recent[0] >= LEAST_SECONDS:
            self.latest, self._recent = Load.of(*self._recent), (0.0, 0.0, 0.0)
        self._seconds, self._own_seconds = self._seconds + seconds, self._own_seconds + own
        self._other_seconds += other
        if self._gpus:
            self._gpus.pause()

    @property
    def cpu_utilisation(self) -> float | None:
        """Processor time of the run as a share of that of the cores that it may use."""
        return self._own_seconds / self._seconds / num_cores() if self._seconds >= LEAST_SECONDS else None

    @property
    def other_load(self) -> float | None:
        return Load.of(self._seconds, self._own_seconds, self._other_seconds).other

    @property
    def gpu_utilisation(self) -> float | None:
        return self._gpus.share if self._gpus else None


@dataclass(frozen=True)
class Load:
    """Shares of all the machine's cores that a run and that others used; None for too short a time.

    Linux counts processor time in hundredths of a second, so a share of a very short time means nothing.
    """

    own: float | None
    other: float | None

    @classmethod
    def of(cls, seconds: float, own_seconds: float, other_seconds: float) -> "Load":
        if seconds < LEAST_SECONDS:
            return cls(None, None)
        whole = seconds * (os.cpu_count() or 1)
        return cls(own_seconds / whole, other_seconds / whole)


@dataclass(frozen=True)
class Measured:
    """The resources that a run has used on one node or on all its nodes.

    Attributes:
      peak_memory_bytes: resident memory, see `common.platform.machine.peak_memory_bytes`.
      joules: energy; None if one of the nodes can't measure it.
      cpu_utilisation: share of the cores that the run may use, 0 to 1.
      gpu_utilisation: share of the time in which the run's GPUs were busy, 0 to 1.
      other_load: share of all cores that other programs, or other tenants of the hardware, used during training.
    """

    peak_memory_bytes: int
    joules: float | None
    cpu_utilisation: float | None
    gpu_utilisation: float | None
    other_load: float | None

    @classmethod
    def of_node(cls, monitor: Monitor, first_pid: int) -> "Measured":
        """The measurements of this node, after its monitor has stopped."""
        memory = peak_memory_bytes(first_pid)
        shares = monitor.cpu_utilisation, monitor.gpu_utilisation, monitor.other_load
        return cls(memory, monitor.energy.joules, *shares)

    def numbers(self) -> list[float]:
        """Numbers to be summed over the nodes: the memory; then each other value and 1, or 0 and 0 if it is unknown."""
        values = (self.joules, self.cpu_utilisation, self.gpu_utilisation, self.other_load)
        return [self.peak_memory_bytes, *(number for value in values for number in (value or 0.0, value is not None))]

    @classmethod
    def of_sums(cls, sums: Sequence[float], num_nodes: int) -> "Measured":
        """The measurements of all nodes from these sums: total memory and energy, and the mean of the shares."""
        joules, *shares = (
            total if known == num_nodes else None for total, known in zip(sums[1::2], sums[2::2], strict=True)
        )
        return cls(round(sums[0]), joules, *(None if share is None else share / num_nodes for share in shares))


NOTHING_MEASURED = [0.0] * 9  # for a process that is not the first one of its node


def machine_busy_seconds() -> float:
    """Busy seconds of all cores since the machine started. Stolen time, which other tenants used, counts as busy."""
    times = psutil.cpu_times()
    # User time already includes guest time (proc(5)).
    return float(sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal")))


# --- Energy ---


@dataclass(frozen=True)
class Counter:
    """An energy counter for a part of the machine, in joules. When it reaches `wrap`, it starts again from 0."""

    source: str
    read: Callable[[], float]
    wrap: float | None = None


class EnergyMeter:
    """Measures energy between `resume` and `pause`, which may be called any number of times.

    Attributes:
      source: `RAPL` or `NVML`; None if the machine does not measure energy.
      joules: energy so far; None if the machine does not measure it.
    """

    def __init__(self, counters: list[Counter]) -> None:
        self._counters = counters
        self._last: list[float] | None = None
        self.source = counters[0].source if counters else None
        self.joules: float | None = 0.0 if counters else None

    def resume(self) -> None:
        self._last = [counter.read() for counter in self._counters]

    def update(self) -> None:
        """Must be called before a counter wraps twice. RAPL's counters wrap within minutes under load."""
        if self._last is None or self.joules is None:
            return
        now = [counter.read() for counter in self._counters]
        for counter, before, after in zip(self._counters, self._last, now, strict=True):
            self.joules += after - before + (counter.wrap or 0.0) * (after < before)
        self._last = now

    def pause(self) -> None:
        self.update()
        self._last = None


def cpu_energy_counters(powercap: Path = POWERCAP) -> list[Counter]:
    """Counters of the processor packages, from the kernel's RAPL driver; empty if none can be read.

    Source of names and units: Documentation/power/powercap/powercap.rst of the Linux kernel.
    """
    counters = []
    for zone in sorted(powercap.glob("intel-rapl:*")):
        energy, name, largest = (zone / file for file in ("energy_uj", "name", "max_energy_range_uj"))
        # intel-rapl:0 is a package. intel-rapl:0:0 is a part of it, and would be counted twice.
        if zone.name.count(":") == 1 and os.access(energy, os.R_OK) and name.read_text().startswith("package"):
            wrap = int(largest.read_text()) / 1e6
            counters.append(Counter("RAPL", lambda file=energy: int(file.read_text()) / 1e6, wrap))  # type: ignore[misc]
    return counters


def gpu_energy_counters(gpus: list[Any]) -> list[Counter]:
    """One counter for each GPU (NVML handles); empty unless all GPUs have one, as they do since Volta."""
    import pynvml

    try:
        for gpu in gpus:
            pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
    except pynvml.NVMLError:
        return []
    return [Counter("NVML", lambda gpu=gpu: pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3) for gpu in gpus]  # type: ignore[misc]


# --- GPUs ---


def visible_gpus(count: int) -> list[Any]:
    """NVML handles of the first `count` GPUs that CUDA sees; empty if NVML is not available.

    NVML numbers the GPUs in the order of the bus. CUDA does the same if all GPUs are of one kind.
    """
    try:
        import pynvml
    except ImportError:  # an implementation's environment may lack it, and training works without it
        return []
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = listed.split(",") if listed else [str(index) for index in range(count)]
    try:
        pynvml.nvmlInit()
        return [
            pynvml.nvmlDeviceGetHandleByIndex(int(name))
            if name.strip().isdigit()
            else pynvml.nvmlDeviceGetHandleByUUID(name.strip())
            for name in names[:count]
        ]
    except pynvml.NVMLError:
        return []


def free_gpu_memory(count: int) -> list[int]:
    """Bytes that are free on each of the first `count` GPUs that CUDA sees; empty if NVML is not available."""
    gpus = visible_gpus(count) if count else []
    if not gpus:
        return []
    import pynvml

    try:
        return [int(pynvml.nvmlDeviceGetMemoryInfo(gpu).free) for gpu in gpus]
    except pynvml.NVMLError:
        return []


class GpuSampler:
    """Samples the share of the time in which the GPUs were busy, in a thread of its own, from `resume` to `pause`."""

    def __init__(self, gpus: list[Any]) -> None:
        self._gpus = gpus
        self._shares: list[float] = []
        self._active = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def resume(self) -> None:
        self._active.set()
        if self._thread.ident is None:
            self._thread.start()

    def pause(self) -> None:
        self._active.clear()

    @property
    def share(self) -> float | None:
        """The mean over all samples and GPUs, 0 to 1; None if there are no samples."""
        return sum(self._shares) / len(self._shares) if self._shares else None

    def _sample(self) -> None:
        import pynvml

        while True:
            time.sleep(GPU_SAMPLE_SECONDS)
            if not self._active.is_set():
                self._active.wait()
                continue
            try:
                self._shares += [pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100 for gpu in self._gpus]
            except pynvml.NVMLError:
                return
