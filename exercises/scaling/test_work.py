import numpy as np
import pytest


def test_typical(work):
    """a typical round, whatever happens in one of three"""
    rounds = {2: [6.0, 5.0, 4.0], 1: [10.0, 30.0, 10.0], 4: [2.5, 2.0, 9.0], 3: [4.0, 8.0, 3.0, 5.0, 1.0], 8: [1.0]}
    hint = f"{rounds}: which number of three, five or one does one odd round not change, be it slow or fast?"
    assert work.typical(rounds) == {2: 5.0, 1: 10.0, 4: 2.5, 3: 4.0, 8: 1.0}, hint
    assert rounds[2] == [6.0, 5.0, 4.0], "the times of a round are in another order now: who else uses the dictionary?"


def test_speed_up(work):
    """the speed-up is how much faster the work is done"""
    seconds = {4: 2.5, 1: 10.0, 2: 12.5, 8: 1.0}
    hint = f"the seconds are {seconds}: which two times does each factor compare, and which of them is above?"
    assert work.speed_up(seconds) == pytest.approx({4: 4.0, 1: 1.0, 2: 0.8, 8: 10.0}), hint


def test_efficiency(work):
    """the efficiency is the speed-up for each device"""
    speed_ups = {4: 2.0, 1: 1.0, 2: 2.5}
    hint = f"the speed-ups are {speed_ups}: what would be 100 %, and can it be more?"
    assert work.efficiency(speed_ups) == pytest.approx({4: 0.5, 1: 1.0, 2: 1.25}), hint
    assert speed_ups == {4: 2.0, 1: 1.0, 2: 2.5}, "the speed-ups that were given: who else uses the dictionary?"


def test_serial_share(work):
    """the serial share is found again, from all times, and is between 0 and 1"""
    for share in (0.0, 0.05, 1.0):
        seconds = {devices: 10 * share + 10 * (1 - share) / devices for devices in (8, 1, 4, 2)}
        hint = f"{seconds}: what is left with endlessly many devices, and does each time have its own equation?"
        assert work.serial_share(seconds) == pytest.approx(share, abs=1e-4), hint
    seconds = {1: 10.03, 2: 5.47, 3: 4.13, 4: 3.27, 5: 2.69, 6: 2.57, 7: 2.55, 8: 2.31}
    b, a = np.polyfit([1 / devices for devices in seconds], list(seconds.values()), 1)
    hint = f"{seconds}: do all 8 equations count alike, or does one count more than the others?"
    assert work.serial_share(seconds) == pytest.approx(a / (a + b), abs=1e-4), hint
    for seconds, wanted in ({1: 10.0, 2: 12.0}, 1.0), ({1: 10.0, 2: 4.0}, 0.0):
        hint = f"{seconds}: a and b are seconds: which numbers can they not be?"
        assert work.serial_share(seconds) == pytest.approx(wanted, abs=1e-4), hint


def test_predict(work):
    """Amdahl's law predicts"""
    for share, devices, wanted in (0.0, 8, 8.0), (1.0, 8, 1.0), (0.5, 2, 4 / 3), (0.1, 10**9, 10.0):
        hint = f"share {share}, {devices} devices: how long do the two parts of the work take on so many devices?"
        assert work.predict(share, devices) == pytest.approx(wanted, rel=1e-4), hint


def test_half_efficient(work):
    """where half of the devices' time is lost"""
    for share, wanted in (1.0, 2.0), (0.5, 3.0), (0.4, 3.5), (1e-4, 10_001.0):
        hint = f"share {share}: try predict(1/9, 10); must it be a whole number, and how large can it become?"
        assert work.half_efficient(share) == pytest.approx(wanted, rel=1e-4), hint
