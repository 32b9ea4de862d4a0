"""Load by other programs while a program runs, measured on this machine, which other tests may keep busy too."""

import os
import subprocess
import sys
import time

import pytest

from common.spec.options import TrainConfig
from comparison.run import load_meter
from comparison.run.load_meter import LoadMeter
from comparison.run.program import Program

PROGRAM = Program(implementation="one", interpreter="python", config=TrainConfig(run_dir="r"))


@pytest.fixture
def busy_loops():
    """A function that starts a given number of processes, each of which keeps one core busy."""
    started = []
    yield lambda number: started.extend(
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)
    )
    for process in started:
        process.kill()
        process.wait()


def test_a_busy_loop_beside_is_seen(busy_loops):
    meter = LoadMeter()
    busy_loops(1)
    time.sleep(1)
    ended = meter.ended(PROGRAM, None)
    assert ended.other_load > 0.5 / os.cpu_count()
    assert 1 <= ended.process_seconds < 5 and ended.failure is None


def test_a_limit_that_stopped_it(monkeypatch):
    periods = iter([(100, 10), (150, 35)])
    monkeypatch.setattr(load_meter, "cpu_periods", lambda: next(periods))
    assert LoadMeter().ended(PROGRAM, None).throttled == 0.5
    monkeypatch.setattr(load_meter, "cpu_periods", lambda: None)
    assert LoadMeter().ended(PROGRAM, None).throttled is None


def test_what_srun_has_started_is_not_distinguished_from_others():
    on_two_nodes = PROGRAM.config.replace(num_nodes=2, devices=1)
    program = PROGRAM.model_copy(update={"config": on_two_nodes})
    ended = LoadMeter().ended(program, "failed")
    assert (ended.other_load, ended.throttled, ended.failure) == (None, None, "failed")
