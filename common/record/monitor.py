"""Measures CPU time, energy and GPU utilisation while a run trains. An unknown value is None, never 0."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from common.platform.machine import num_cores, peak_memory_bytes

GPU_SAMPLE_SECONDS, LEAST_SECONDS = 0.5, 0.1
POWERCAP = Path("/sys/class/powercap")


class Monitor:
    """Measures from `start` to `stop`; measures energy only while `energy` is running.

    Args:
      first_pid: id of the run's first process; its descendants are included.
      num_gpus: number of GPUs that the run uses; 0 on the CPU.
    """

    def __init__(self, first_pid: int, num_gpus: int) -> None:
        self._first_pid = first_pid
        self._busy_seconds = 0.0
        gpus = visible_gpus(num_gpus) if num_gpus else []
        self.energy = EnergyMeter((gpu_counters(gpus) if gpus else []) if num_gpus else cpu_counters())
        self._gpus = GpuSampler(gpus) if gpus else None
        self._started = self._cpu_seconds = 0.0
        self.cpu_utilisation: float | None = None
        self.other_load: float | None = None
        self.gpu_utilisation: float | None = None

    def start(self) -> None:
        self._cpu_seconds, self._started = cpu_seconds(self._first_pid), time.perf_counter()
        self._busy_seconds = busy_seconds()
        if self._gpus:
            self._gpus.start()

    def stop(self) -> None:
        """Sets `cpu_utilisation` (a share of the cores that the run may use), `other_load` and `gpu_utilisation`."""
        seconds = time.perf_counter() - self._started
        used = cpu_seconds(self._first_pid) - self._cpu_seconds
        others = busy_seconds() - self._busy_seconds - used
        # Linux counts CPU time in hundredths of a second, so a share of a very short time means nothing.
        known = seconds >= LEAST_SECONDS
        self.cpu_utilisation = used / seconds / num_cores() if known else None
        self.other_load = max(0.0, others / seconds / (os.cpu_count() or 1)) if known else None
        self.gpu_utilisation = self._gpus.stop() if self._gpus else None


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


def busy_seconds() -> float:
    """Busy seconds of all cores since the machine started. Stolen time, which other tenants used, counts as busy."""
    times = psutil.cpu_times()
    # User time already includes guest time (proc(5)).
    return float(sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal")))


def cpu_seconds(pid: int) -> float:
    """CPU seconds, user and system, of process `pid` and its running descendants."""
    total = 0.0
    root = psutil.Process(pid)
    for process in [root, *root.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue  # it ended meanwhile
        total += times.user + times.system
    return total


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


def cpu_counters(powercap: Path = POWERCAP) -> list[Counter]:
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


def gpu_counters(gpus: list[Any]) -> list[Counter]:
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


class GpuSampler:
    """Samples the share of the time in which the GPUs were busy, in a thread of its own."""

    def __init__(self, gpus: list[Any]) -> None:
        self._gpus = gpus
        self._shares: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> float | None:
        """Stops sampling. Returns the mean over all samples and GPUs, 0 to 1; None if there are no samples."""
        self._ended.set()
        self._thread.join()
        return sum(self._shares) / len(self._shares) if self._shares else None

    def _sample(self) -> None:
        import pynvml

        while not self._ended.wait(GPU_SAMPLE_SECONDS):
            try:
                self._shares += [pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100 for gpu in self._gpus]
            except pynvml.NVMLError:
                return
