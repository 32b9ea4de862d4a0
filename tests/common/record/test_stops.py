"""A run that is stopped for a while, as by Ctrl-Z: that time is no time of the run."""

import re
import signal
import sys
import time

import pytest
from conftest import CPU, start_process, steps_taken, wait_for

from common.record.results import read_result

SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("tf", "keras", "ptl")]


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["pt", *SLOW])
def test_the_time_of_a_stop_is_no_time_of_the_run(tmp_path, implementation):
    command = (sys.executable, "-m", f"{implementation}_impl", *CPU, "--epochs", 150, "--run-dir", tmp_path / "r")
    process = start_process(command)
    wait_for(lambda: steps_taken(tmp_path / "r") > 100, 120)
    process.send_signal(signal.SIGSTOP)
    time.sleep(4)
    process.send_signal(signal.SIGCONT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    result = read_result(tmp_path / "r")
    assert result.stopped_seconds == pytest.approx(4, abs=0.5)
    assert max(result.epoch_train_seconds) < 3.5 and re.search(r"the run was stopped for [34]\.\d s", out)
