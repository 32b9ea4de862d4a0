"""Ctrl-C once, twice or three times at random moments of a comparison: in proofs, runs, tables and report."""

import random
import signal
import sys
import time

import pytest
from conftest import read_csv, run
from ctrl_c import press_ctrl_c
from test_compare import SHORT

COMMAND = (sys.executable, "compare.py", "--implementations", "one", "two", *SHORT, "--output-dir")


@pytest.fixture(scope="module")
def seconds(project, tmp_path_factory):
    """Duration of the comparison without an interruption."""
    began = time.monotonic()
    run(*COMMAND, tmp_path_factory.mktemp("whole") / "r", cwd=project)
    return time.monotonic() - began


@pytest.mark.slow
@pytest.mark.parametrize("moments", [3, pytest.param(12, marks=pytest.mark.slow)])
def test_ctrl_c_at_any_moment(project, tmp_path, seconds, moments):
    for part in range(moments):
        folder, temporary, cache = (tmp_path / f"{name}{part}" for name in ("r", "temporary", "cache"))
        pauses = [seconds * (part + random.random()) / moments, *(random.uniform(0, 1) for _ in range(part % 3))]
        ended = press_ctrl_c((*COMMAND, folder), pauses, temporary, project, XDG_CACHE_HOME=str(cache))
        told = f"{seconds} seconds in all; {ended.told}"
        assert ended.status in ((130, -signal.SIGINT, 0) if ended.pressed else (0,)), told
        if (folder / "comparison.json").exists():
            run(sys.executable, "compare.py", "--resume", folder, cwd=project)
        else:
            run(*COMMAND, folder, cwd=project)
        rows = read_csv(folder / "results.csv")
        assert [(row["implementation"], row["status"]) for row in rows] == [("one", "ok"), ("two", "ok")], told
