"""What a container's limits allow, read from made-up trees of control groups."""

import os

import pytest

from common.platform import machine
from common.platform.machine import cpu_periods, cpu_quota

OWN, STAT = "0::/a/b\n", "nr_periods 50\nnr_throttled 5\n"


@pytest.mark.parametrize(
    ("own", "files", "quota", "periods"),
    [
        (OWN, {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "250000 100000\n"}, 2.5, None),  # that of the parent group
        (OWN, {"a/b/cpu.max": "50000 100000\n", "a/cpu.max": "250000 100000\n", "a/cpu.stat": STAT}, 0.5, (50, 5)),
        (OWN, {"a/cpu.max": "max 100000\n", "a/cpu.stat": "nr_periods 0\nnr_throttled 0\n"}, None, None),
        ("", {}, None, None),
    ],
)
def test_a_limit_is_found(tmp_path, own, files, quota, periods):
    (tmp_path / "own").write_text(own)
    for name, content in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    groups = tmp_path / "groups", tmp_path / "own"
    assert cpu_quota(*groups) == quota and cpu_periods(*groups) == periods


@pytest.mark.parametrize(("quota", "cores"), [(None, 8), (2.5, 2), (0.3, 1), (64.0, 8)])
def test_cores_are_those_of_the_limit(monkeypatch, quota, cores):
    monkeypatch.setattr(machine, "cpu_quota", lambda: quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert machine.num_cores() == cores
