import itertools
import os
import sys
import time
from types import SimpleNamespace

import pytest
from conftest import run

from common.platform.machine import num_cores
from common.record import monitor
from common.record.monitor import Monitor, visible_gpus

USED = """
import os, subprocess, sys, time
import psutil
from common.platform.machine import peak_memory_bytes
from common.record.monitor import Monitor
before = peak_memory_bytes(os.getpid())
block = bytearray(200 * 2**20); del block
alone = peak_memory_bytes(os.getpid())
burn = "block = bytearray(100 * 2**20); import time; end = time.monotonic() + 60\\nwhile time.monotonic() < end: pass"
child = subprocess.Popen([sys.executable, "-c", burn])
used = lambda: sum(psutil.Process(child.pid).cpu_times()[:2])
while used() < 0.5:
    time.sleep(0.1)
seconds, started = used(), time.monotonic()
monitor = Monitor(os.getpid(), 0); monitor.resume()
while used() < seconds + 0.5:
    time.sleep(0.1)
monitor.pause()
print(monitor.measured()["cpu_utilisation"], (used() - seconds) / (time.monotonic() - started))
print(alone - before, peak_memory_bytes(os.getpid()) - alone)
child.kill(); child.wait()
"""


def test_what_children_use_counts_and_memory_that_was_freed_again():
    (share, cores), (own, of_child) = map(str.split, run(sys.executable, "-c", USED).stdout.splitlines())
    # The busy child gets as much of one core as other processes leave.
    assert float(share) * num_cores() == pytest.approx(float(cores), rel=0.25)
    assert 150 * 2**20 < int(own) < 250 * 2**20 and 95 * 2**20 < int(of_child) < 160 * 2**20


@pytest.fixture
def nvml(monkeypatch):
    """Two GPUs, as nvidia-ml-py shows them; each has used half a joule more whenever it is asked."""
    millijoules = {"0": itertools.count(1000, 500), "1": itertools.count(5000, 500)}
    fake = SimpleNamespace(
        NVMLError=OSError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=str,
        nvmlDeviceGetHandleByUUID=str,
        nvmlDeviceGetTotalEnergyConsumption=lambda gpu: next(millijoules[gpu]),
        nvmlDeviceGetUtilizationRates=lambda gpu: SimpleNamespace(gpu={"0": 80, "1": 40}[gpu]),
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)


def test_energy_and_use_are_those_of_the_gpus_that_cuda_sees(monkeypatch, nvml):
    monkeypatch.setattr(monitor, "GPU_SAMPLE_SECONDS", 0.01)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus(2) == ["0", "1"]
    watch = Monitor(os.getpid(), 2)
    watch.resume()
    for joules in (1.0, 2.0):
        watch.energy.resume()
        time.sleep(0.1)
        watch.energy.pause()
        watch.energy.pause()
        assert watch.energy.joules == pytest.approx(joules)
    watch.pause()
    assert watch.measured()["gpu_utilisation"] == pytest.approx(0.6)
    for listed, found in (("1", ["1"]), ("1,0", ["1", "0"]), ("GPU-b", ["GPU-b"])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
        assert visible_gpus(len(found)) == found

    def fail():
        raise OSError

    monkeypatch.setattr(sys.modules["pynvml"], "nvmlInit", fail)  # there is no driver
    assert visible_gpus(1) == [] and Monitor(os.getpid(), 1).energy.joules is None
