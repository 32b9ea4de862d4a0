import pickle
import sys
import time

from conftest import run

from common.record.timeline import PHASES, Timeline


def test_every_second_is_in_exactly_one_phase(monkeypatch):
    now = 100.0
    monkeypatch.setattr("common.record.timeline.process_start", lambda pid: 90.0)
    monkeypatch.setattr("common.record.timeline.time.perf_counter", lambda: now)
    timeline = Timeline.begin(1)
    for phase, at in (("data", 100.0), ("build", 103.0), ("training", 110.0), ("between", 150.0), ("training", 151.0)):
        now = at
        assert timeline.enter(phase) == at
    now = 160.0
    timeline = pickle.loads(pickle.dumps(timeline))  # as a worker process receives it
    timeline.enter("between")
    assert timeline.seconds == dict(zip(PHASES, (10.0, 3.0, 7.0, 49.0, 0.0, 1.0, 0.0, 0.0), strict=True))
    assert sum(timeline.seconds.values()) == now - 90.0


def test_it_begins_with_the_process():
    code = """
import time; time.sleep(0.3)
from common.record.timeline import Timeline
import os; timeline = Timeline.begin(os.getpid()); timeline.enter("data"); print(timeline.seconds["imports"])
"""
    started = time.perf_counter()
    seconds = float(run(sys.executable, "-c", code).stdout)
    assert 0.3 < seconds < time.perf_counter() - started + 0.02
