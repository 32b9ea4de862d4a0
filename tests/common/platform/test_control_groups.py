"""A container's CPU limit, read from made-up trees of control groups."""

import os

import pytest

from common.platform import machine
from common.platform.control_groups import cpu_periods, cpu_quota


def tree(folder, own, **files):
    """Writes files of control groups; `files`: path -> content."""
    (folder / "own").write_text(own)
    for name, content in files.items():
        path = folder / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder / "groups", folder / "own"


STAT = "nr_periods 50\nnr_throttled 5\nthrottled_usec 100\n"


def test_version_2(tmp_path):
    groups = tree(tmp_path, "0::/a/b\n", **{"a/b/cpu.max": "max 100000\n", "a/cpu.max": "250000 100000\n"})
    assert cpu_quota(*groups) == 2.5  # the limit of the parent group
    more = {"a/b/cpu.max": "50000 100000\n", "a/cpu.stat": STAT, "a/b/cpu.stat": "usage 1\n"}
    tree(tmp_path, "0::/a/b\n", **more)
    assert cpu_quota(*groups) == 0.5 and cpu_periods(*groups) == (50, 5)


def test_version_1(tmp_path):
    own, folder = "3:cpuset:/x\n2:cpu,cpuacct:/docker/1\n0::/\n", "cpu,cpuacct/docker/1/cpu"
    files = {f"{folder}.cfs_quota_us": "150000\n", f"{folder}.cfs_period_us": "100000\n", f"{folder}.stat": STAT}
    groups = tree(tmp_path, own, **files)
    assert cpu_quota(*groups) == 1.5 and cpu_periods(*groups) == (50, 5)
    tree(tmp_path, own, **{f"{folder}.cfs_quota_us": "-1\n"})
    assert cpu_quota(*groups) is None


def test_no_limit_and_no_linux(tmp_path):
    idle = {"a/cpu.max": "max 100000\n", "a/cpu.stat": "nr_periods 0\nnr_throttled 0\n"}
    groups = tree(tmp_path, "0::/a\n", **idle)
    assert cpu_quota(*groups) is None and cpu_periods(*groups) is None
    assert cpu_quota(tmp_path, tmp_path / "nothing") is None and cpu_periods(tmp_path, tmp_path / "nothing") is None


@pytest.mark.parametrize(("quota", "cores"), [(None, 8), (2.5, 2), (0.3, 1), (64.0, 8)])
def test_cores_are_those_of_the_limit(monkeypatch, quota, cores):
    monkeypatch.setattr(machine, "cpu_quota", lambda: quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert machine.num_cores() == cores
