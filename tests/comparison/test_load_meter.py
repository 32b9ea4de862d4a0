"""Load by other programs while a program runs, measured on this machine, which other tests may keep busy too."""

import os
import subprocess
import sys
import time

from common.spec.options import TrainConfig
from comparison.run import load_meter
from comparison.run.load_meter import LoadMeter
from comparison.run.program import Program

PROGRAM = Program(implementation="one", interpreter="python", config=TrainConfig(run_dir="r"))


def test_a_busy_loop_beside_is_seen():
    meter = LoadMeter()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        time.sleep(1)
        ended = meter.ended(PROGRAM, None)
        busy.kill()
    assert ended.other_load > 0.5 / os.cpu_count()
    assert 1 <= ended.process_seconds < 5 and ended.failure is None


def test_a_limit_of_the_container_that_stopped_it(monkeypatch):
    periods = iter([(100, 10), (150, 35)])
    monkeypatch.setattr(load_meter, "cpu_periods", lambda: next(periods))
    assert LoadMeter().ended(PROGRAM, None).throttled == 0.5
