"""Ctrl-C once, twice or three times at random moments of a comparison: proofs, runs, tables and report."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest
from conftest import read_csv, run
from test_compare import SHORT

OPTIONS = ("--implementations", "one", "two", *SHORT)


def command(folder):
    return list(map(str, (sys.executable, "compare.py", *OPTIONS, "--output-dir", folder)))


@pytest.fixture(scope="module")
def seconds(project, tmp_path_factory):
    """How long it takes where nothing happens."""
    began = time.monotonic()
    run(*command(tmp_path_factory.mktemp("whole") / "r"), cwd=project)
    return time.monotonic() - began


@pytest.mark.parametrize("moments", [3, pytest.param(12, marks=pytest.mark.slow)])
def test_ctrl_c_at_any_moment(project, tmp_path, fault, seconds, moments):
    for part in range(moments):
        times = part % 3 + 1
        folder, temporary, cache = (tmp_path / f"{name}{part}" for name in ("r", "temporary", "cache"))
        temporary.mkdir()
        pauses = [seconds * (part + random.random()) / moments, *(random.uniform(0, 1) for _ in range(times - 1))]
        process = subprocess.Popen(
            command(folder),
            cwd=project,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(temporary), "XDG_CACHE_HOME": str(cache)},
        )
        family, pressed = [], 0
        for pause in pauses:
            with suppress(subprocess.TimeoutExpired):
                process.wait(pause)
                break
            with suppress(psutil.NoSuchProcess):
                family += psutil.Process(process.pid).children(recursive=True)
            os.killpg(process.pid, signal.SIGINT)
            pressed += 1
        began = time.monotonic()
        out, err = process.communicate(timeout=60)
        ended = time.monotonic() - began
        _, alive = psutil.wait_procs(family, timeout=10)
        told = f"after {pauses} of {seconds} seconds, {pressed} times: status {process.returncode}\n{out}\n{err}"
        print(told)
        assert not alive and "Traceback" not in err, told
        assert not [path for path in temporary.rglob("*") if path.is_file()], told
        assert process.returncode in ((130, -signal.SIGINT, 0) if pressed else (0,)), told
        if (folder / "comparison.json").exists():
            run(sys.executable, "compare.py", "--resume", folder, cwd=project)
        else:
            run(*command(folder), cwd=project)
        rows = read_csv(folder / "results.csv")
        assert [(row["implementation"], row["status"]) for row in rows] == [("one", "ok"), ("two", "ok")], told
        if pressed:
            line = next((line for line in err.splitlines() if line.startswith("compare.py: ")), None)
            then = "what is finished is shown, no process and no temporary file is left; `--resume` does the rest"
            fault("ctrl-c comparison", "compare.py", process.returncode, line, then, ended)
