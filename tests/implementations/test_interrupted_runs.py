"""Ctrl-C once, twice or three times at random moments, from a run's imports to its last file."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest
from conftest import CPU, REPOSITORY, train

from common.record.results import read_result

SHORT = (*CPU, "--train-size", 500, "--epochs", 3, "--checkpoint-every", 20)


def command(implementation, devices, run_dir):
    options = (*SHORT, "--devices", devices, "--run-dir", run_dir)
    return list(map(str, (sys.executable, "-m", f"{implementation}_impl", *options)))


@pytest.fixture(scope="module")
def seconds_of(tmp_path_factory):
    """A function that gives how long a whole run takes."""
    found = {}

    def measure(implementation, devices):
        if (implementation, devices) not in found:
            began = time.monotonic()
            train(implementation, tmp_path_factory.mktemp("whole") / "r", *SHORT, "--devices", devices)
            found[implementation, devices] = time.monotonic() - began
        return found[implementation, devices]

    return measure


def family_of(process):
    with suppress(psutil.NoSuchProcess):
        return [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    return []


@pytest.mark.parametrize(
    ("implementation", "devices", "moments"),
    [
        ("pt", 2, 3),
        *(
            pytest.param(implementation, devices, 6, marks=pytest.mark.slow)
            for implementation in ("tf", "keras", "pt", "ptl")
            for devices in (1, 2)
        ),
    ],
)
def test_ctrl_c_at_any_moment(tmp_path, fault, seconds_of, implementation, devices, moments):
    """The moments are spread over a whole run, one in each part of it; once, twice, and three times in turns."""
    whole = seconds_of(implementation, devices)
    for part in range(moments):
        times, folder, temporary = part % 3 + 1, tmp_path / f"r{part}", tmp_path / f"temporary{part}"
        temporary.mkdir()
        pause = [whole * (part + random.random()) / moments, *(random.uniform(0, 1.5) for _ in range(times - 1))]
        process = subprocess.Popen(
            command(implementation, devices, folder),
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        family, pressed = [], 0
        for seconds in pause:
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
                break
            family += family_of(process)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            pressed += 1
        began = time.monotonic()
        out, err = process.communicate(timeout=60)
        _, alive = psutil.wait_procs(family, timeout=10)
        ended = time.monotonic() - began
        told = f"after {pause} of {whole} seconds, {pressed} times: status {process.returncode}\n{out}\n{err}"
        print(told)
        assert not alive and "Traceback" not in err, told
        assert not [path for path in temporary.rglob("*") if path.is_file()], told
        lines = [line for line in err.splitlines() if line.startswith("python -m ")]
        assert process.returncode in (0, 75, 130, -signal.SIGINT) and len(lines) <= max(pressed, 1), told
        finished = (folder / "result.json").exists()
        if process.returncode == 0:
            assert pressed == 0 or finished, told
        else:
            assert not finished or process.returncode == 130, told
        if process.returncode == 75:
            assert "--resume" in lines[0], told
        if process.returncode == 130:
            assert lines[-1] == f"python -m {implementation}_impl: interrupted", told
            assert all("--resume" in line for line in lines[:-1]), told  # it had just made one when it was asked again
        if part in (1, 4):
            if not finished:
                train(implementation, folder, *SHORT, "--devices", devices, "--resume", "auto")
            assert read_result(folder).num_steps == 24
        if pressed:
            whom, then = (
                f"{implementation}, {devices} devices",
                "no process and no temporary file is left; `--resume auto` works",
            )
            fault("ctrl-c", whom, process.returncode, lines[-1] if lines else None, then, ended)
