import os
import sys
import time
from types import SimpleNamespace

import pytest
from conftest import run

from common.platform.machine import num_cores
from common.record import monitor
from common.record.monitor import (
    EnergyMeter,
    Monitor,
    cpu_energy_counters,
    free_gpu_memory,
    gpu_energy_counters,
    visible_gpus,
)


def test_the_processor_time_of_children_counts():
    code = """
import os, subprocess, sys, time
import psutil
from common.platform.machine import num_cores
from common.record.monitor import Monitor
burn = "import time; end = time.monotonic() + 60\\nwhile time.monotonic() < end: pass"
child = subprocess.Popen([sys.executable, "-c", burn])
used = lambda: sum(psutil.Process(child.pid).cpu_times()[:2])
while not used():
    time.sleep(0.1)
before, started = used(), time.monotonic()
monitor = Monitor(os.getpid(), 0); monitor.resume()
while used() < before + 0.5:
    time.sleep(0.1)
monitor.pause()
print(monitor.cpu_utilisation * num_cores(), (used() - before) / (time.monotonic() - started), monitor.gpu_utilisation)
child.kill(); child.wait()
"""
    cores, expected, gpu = run(sys.executable, "-c", code).stdout.split()
    # In cores: the busy child gets as much of one core as other processes leave.
    assert float(cores) == pytest.approx(float(expected), rel=0.25) and gpu == "None"


def test_idle_is_near_zero_and_too_short_is_unknown(monkeypatch):
    watch = Monitor(os.getpid(), 0)
    watch.resume()
    time.sleep(0.3)
    watch.pause()
    assert watch.cpu_utilisation is not None and watch.cpu_utilisation < 0.2 / num_cores()
    moments = iter((5.0, 5.0 + 0.9 * monitor.LEAST_SECONDS))
    monkeypatch.setattr(time, "perf_counter", lambda: next(moments))
    watch = Monitor(os.getpid(), 0)
    watch.resume()
    watch.pause()
    assert watch.cpu_utilisation is None


def test_processor_time_is_never_negative_when_a_child_has_ended(monkeypatch):
    used = iter([5.0, 2.0])
    monkeypatch.setattr(monitor, "cpu_seconds", lambda pid: next(used))
    watch = Monitor(os.getpid(), 0)
    watch.resume()
    time.sleep(0.3)
    watch.pause()
    assert watch.cpu_utilisation == 0


def zone(folder, name, kind, energy, largest=1_000_000):
    (folder / name).mkdir()
    (folder / name / "name").write_text(kind + "\n")
    (folder / name / "energy_uj").write_text(f"{energy}\n")
    (folder / name / "max_energy_range_uj").write_text(f"{largest}\n")
    return folder / name / "energy_uj"


def test_joules_are_those_of_the_packages_between_resume_and_pause(tmp_path):
    first = zone(tmp_path, "intel-rapl:0", "package-0", 900_000)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 0)
    part = zone(tmp_path, "intel-rapl:0:0", "core", 0)
    whole = zone(tmp_path, "intel-rapl:2", "psys", 0)
    meter = EnergyMeter(cpu_energy_counters(tmp_path))
    assert meter.source == "RAPL" and meter.joules == 0
    first.write_text("950000")
    meter.resume()
    first.write_text("150000")  # the counter has wrapped: 50,000 to its end and 150,000 more
    second.write_text("300000")
    part.write_text("999")
    whole.write_text("999")
    meter.update()
    assert meter.joules == pytest.approx(0.2 + 0.3)
    second.write_text("400000")
    meter.pause()
    second.write_text("900000")  # not measured
    meter.resume()
    meter.pause()
    assert meter.joules == pytest.approx(0.2 + 0.4)


def test_energy_is_unknown_where_the_machine_does_not_tell(tmp_path):
    unreadable = zone(tmp_path, "intel-rapl:0", "psys", 0)
    assert unreadable.exists()
    for folder in (tmp_path, tmp_path / "none"):
        meter = EnergyMeter(cpu_energy_counters(folder))
        meter.resume()
        meter.pause()
        assert meter.joules is None and meter.source is None


class FakeNvml:
    """Two GPUs, as nvidia-ml-py shows them; `counts`: whether they count energy."""

    class NVMLError(Exception):
        pass

    def __init__(self, counts=True):
        self.counts, self.millijoules = counts, {"0": 1000, "1": 5000, "GPU-b": 5000}

    def nvmlInit(self):  # noqa: N802
        pass

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        if index > 1:
            raise self.NVMLError("Invalid Argument")
        return str(index)

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        return uuid

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu):  # noqa: N802
        if not self.counts:
            raise self.NVMLError("Not Supported")
        self.millijoules[gpu] += 500
        return self.millijoules[gpu]

    def nvmlDeviceGetUtilizationRates(self, gpu):  # noqa: N802
        return SimpleNamespace(gpu={"0": 80, "1": 40}[gpu])


def test_energy_and_use_of_gpus(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    monkeypatch.setattr(monitor, "GPU_SAMPLE_SECONDS", 0.01)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    watch = Monitor(os.getpid(), 2)
    watch.resume()
    watch.energy.resume()
    time.sleep(0.1)
    watch.energy.pause()
    watch.pause()
    assert watch.energy.source == "NVML" and watch.energy.joules == pytest.approx(1.0)  # two GPUs, half a joule each
    assert watch.gpu_utilisation == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("listed", "count", "found"),
    [(None, 2, ["0", "1"]), ("1", 1, ["1"]), ("1,0", 2, ["1", "0"]), ("GPU-b", 1, ["GPU-b"]), (None, 3, [])],
)
def test_the_gpus_are_those_that_cuda_sees(monkeypatch, listed, count, found):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if listed:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert visible_gpus(count) == found


def test_gpus_that_do_not_count_energy_leave_it_unknown(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(counts=False))
    assert gpu_energy_counters(["0"]) == []
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    assert visible_gpus(1) == [] and free_gpu_memory(1) == []
    watch = Monitor(os.getpid(), 1)
    assert watch.energy.joules is None and watch.energy.source is None
