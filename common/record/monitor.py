"""Measures load, CPU time, and each GPU's energy, use and memory while a run trains. What is unknown is None."""

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from common.platform.fork_server import is_forked
from common.platform.machine import cpu_seconds, num_cores, peak_memory_bytes

GPU_SAMPLE_SECONDS, LEAST_SECONDS = 0.5, 0.1
# What a node measures, see `common.record.results.RunResult`; the last three are shares.
MONITORED = ("peak_memory_bytes", "joules", "cpu_utilisation", "gpu_utilisation", "training_other_load")


class Monitor:
    """Measures from `resume` to `pause`, as often as they are called; energy only while `energy` is running.

    Args:
      first_pid: id of the run's first process; its descendants are included.
      num_gpus: number of GPUs that the run uses; 0 on the CPU.

    Attributes:
      own_load, other_load: shares of all the machine's cores that the run and others have used in the latest stretch
        of time from `resume` to `pause`, or in several of them that together are long enough to be measured.
    """

    def __init__(self, first_pid: int, num_gpus: int) -> None:
        self._first_pid = first_pid
        gpus = visible_gpus(num_gpus)
        self.energy = EnergyMeter(gpus)
        self._since: NDArray[np.floating] | None = None  # None: paused
        self._gpu_shares: list[float] = []
        if gpus:
            threading.Thread(target=self._sample, args=(gpus,), daemon=True).start()
        self._all, self._recent = np.zeros(3), np.zeros(3)  # seconds; processor seconds of the run and of others
        self.own_load, self.other_load = shares_of_cores(self._recent)

    def _now(self) -> NDArray[np.floating]:
        return np.array([time.perf_counter(), cpu_seconds(self._first_pid), machine_busy_seconds()])

    def resume(self) -> None:
        if self._since is None:
            self._since = self._now()

    def pause(self) -> None:
        if self._since is None:
            return
        seconds, own, busy = self._now() - self._since
        own = max(0.0, own)  # less if a process has ended
        stretch = np.array([seconds, own, max(0.0, busy - own)])
        self._since, self._all, self._recent = None, self._all + stretch, self._recent + stretch
        if self._recent[0] >= LEAST_SECONDS:
            self.own_load, self.other_load = shares_of_cores(self._recent)
            self._recent = np.zeros(3)

    def _sample(self, gpus: list[Any]) -> None:
        """Samples the share of the time in which the GPUs were busy, in a thread of its own."""
        while True:
            time.sleep(GPU_SAMPLE_SECONDS)
            if self._since is not None:
                self._gpu_shares += [use.gpu / 100 for use in ask_gpus("UtilizationRates", gpus)]

    def measured(self) -> dict[str, float | None]:
        """MEASURED -> its value on this node, in all the time from `resume` to `pause`."""
        seconds, own, _ = self._all
        cpu = own / seconds / num_cores() if seconds >= LEAST_SECONDS else None
        gpu = sum(self._gpu_shares) / len(self._gpu_shares) if self._gpu_shares else None
        # Linux does not count pages of libraries that a forked process has not used itself.
        peak = None if is_forked() else peak_memory_bytes(self._first_pid)
        values = (peak, self.energy.joules, cpu, gpu, shares_of_cores(self._all)[1])
        return dict(zip(MONITORED, values, strict=True))


def shares_of_cores(stretch: Sequence[float] | NDArray[np.floating]) -> tuple[float | None, float | None]:
    """Shares of all the machine's cores that a run and that others used; None for too short a time.

    Linux counts processor time in hundredths of a second, so a share of a very short time means nothing.

    Args:
      stretch: seconds; processor seconds of the run and of others.
    """
    seconds, own, other = map(float, stretch)
    whole = seconds * (os.cpu_count() or 1)
    return (None, None) if seconds < LEAST_SECONDS else (own / whole, other / whole)


def machine_busy_seconds() -> float:
    """Busy seconds of all cores since the machine started. Stolen time, which other tenants used, counts as busy."""
    times = psutil.cpu_times()
    # User time already includes guest time (proc(5)).
    return float(sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal")))


# --- GPUs ---


class EnergyMeter:
    """Measures the energy of GPUs (NVML handles) between `resume` and `pause`, as often as they are called.

    Attributes:
      joules: energy so far; None if not all of them have a counter, as they have since Volta.
    """

    def __init__(self, gpus: list[Any]) -> None:
        self._gpus = gpus
        self._since: float | None = None
        self.joules = None if self._read() is None else 0.0

    def _read(self) -> float | None:
        millijoules = ask_gpus("TotalEnergyConsumption", self._gpus)
        return sum(millijoules) / 1e3 if millijoules else None

    def resume(self) -> None:
        self._since = self._read()

    def pause(self) -> None:
        if self._since is not None and self.joules is not None:
            now = self._read()
            self.joules = None if now is None else self.joules + now - self._since
        self._since = None


def visible_gpus(count: int) -> list[Any]:
    """NVML handles of the first `count` GPUs that CUDA sees; empty if NVML is not available.

    NVML numbers the GPUs in the order of the bus. CUDA does the same if all GPUs are of one kind.
    """
    if not count:
        return []
    import pynvml

    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [name.strip() for name in listed.split(",")] if listed else [str(index) for index in range(count)]
    try:
        pynvml.nvmlInit()
        by_index, by_id = pynvml.nvmlDeviceGetHandleByIndex, pynvml.nvmlDeviceGetHandleByUUID
        return [by_index(int(name)) if name.isdigit() else by_id(name) for name in names[:count]]
    except pynvml.NVMLError:
        return []


def ask_gpus(question: str, gpus: list[Any]) -> list[Any]:
    """What NVML's function `nvmlDeviceGet<question>` answers for each GPU; empty if it can't answer for all."""
    if not gpus:
        return []
    import pynvml

    try:
        return [getattr(pynvml, f"nvmlDeviceGet{question}")(gpu) for gpu in gpus]
    except pynvml.NVMLError:
        return []


def free_gpu_memory(count: int) -> list[int]:
    """Bytes that are free on each of the first `count` GPUs that CUDA sees; empty if NVML is not available."""
    return [int(memory.free) for memory in ask_gpus("MemoryInfo", visible_gpus(count))]
