"""Ctrl-C once, twice or three times at random moments, from a run's imports to its last file."""

import random
import signal
import time

import pytest
from conftest import CPU, IMPLEMENTATIONS, REPOSITORY, program_of, train
from ctrl_c import press_ctrl_c

from common.record.results import read_result

PARTS = 6
SHORT = (*CPU, "--train-size", 500, "--epochs", 3, "--checkpoint-every", 20)


@pytest.fixture(scope="module")
def seconds_of(tmp_path_factory):
    """A function that returns how many seconds a whole run takes."""
    found = {}

    def measure(implementation, devices):
        if (implementation, devices) not in found:
            began = time.monotonic()
            train(implementation, tmp_path_factory.mktemp("whole") / "r", *SHORT, "--devices", devices)
            found[implementation, devices] = time.monotonic() - began
        return found[implementation, devices]

    return measure


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_ctrl_c_at_any_moment(tmp_path, seconds_of, implementation, devices):
    """Ctrl-C is pressed at a random moment in each of PARTS parts of a run: once, twice and three times in turn."""
    whole, program = seconds_of(implementation, devices), f"python -m {implementation}_impl"
    for part in range(PARTS):
        folder, options = tmp_path / f"r{part}", (*SHORT, "--devices", devices)
        pauses = [whole * (part + random.random()) / PARTS, *(random.uniform(0, 1.5) for _ in range(part % 3))]
        command = (*program_of(implementation), *options, "--run-dir", folder)
        ended = press_ctrl_c(command, pauses, tmp_path / f"temporary{part}", REPOSITORY)
        status, lines, told = ended.status, ended.lines("python -m "), f"{whole} seconds in all; {ended.told}"
        assert status in (0, 75, 130, -signal.SIGINT) and len(lines) <= max(ended.pressed, 1), told
        finished = (folder / "result.json").exists()
        if status == 0:
            assert ended.pressed == 0 or finished, told
        else:
            assert not finished or status == 130, told
        if status == 75:
            assert "--resume" in lines[0], told
        if status == 130:
            assert lines[-1] == f"{program}: interrupted", told
            assert all("--resume" in line for line in lines[:-1]), told  # it had just written a checkpoint
        if part in (1, 4):
            if not finished:
                train(implementation, folder, *options, "--resume", "auto")
            assert read_result(folder).num_steps == 24
