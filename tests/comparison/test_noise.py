"""Verdicts on a machine that others use too: the rules of comparison/rounds.py and intervals.py together."""

import numpy as np
import pytest
from simulation import burst, busy, quiet, rounds, short_burst, steal

from comparison.intervals import MIN_ROUNDS, outliers, paired_ratio
from comparison.rounds import BUSY, IDLE, disturbs, is_due, most_taken_again

OWN = 0.95  # share of the cores that a run itself uses


def compare(rng, repeats, ratio, others):
    """The ratio found by a comparison with `--repeats`, and the number of its disturbed rounds."""
    most = repeats + most_taken_again(repeats)
    pairs = np.stack(rounds(rng, most, ratio, noise=0.04), axis=1)
    slower, share = (one.reshape(most, 2) for one in others(rng, 2 * most))
    pairs = pairs * np.exp(-slower)
    disturbed = []
    while is_due(disturbed, repeats):
        disturbed.append(any(disturbs(one, OWN) for one in share[len(disturbed)]))
    left = pairs[: len(disturbed)][~np.array(disturbed)]
    return (paired_ratio(*left.T) if len(left) else None), sum(disturbed)


def simulate(simulations, others, repeats, ratios=(1.0, 1.1, 1 / 1.1, 1.5), seed=0):
    """Shares of wrong ones among "faster" and "slower", of true differences found, and of cases without a verdict."""
    rng = np.random.default_rng(seed)
    called = wrong = none = found = different = 0
    for index in range(simulations):
        ratio = ratios[index % len(ratios)]
        truth = "faster" if ratio > 1 else "slower" if ratio < 1 else "no difference shown"
        got, _ = compare(rng, repeats, ratio, others)
        verdict = got.verdict if got else None
        none += verdict is None
        if verdict in ("faster", "slower"):
            called += 1
            wrong += verdict != truth
        if ratio != 1:
            different += 1
            found += verdict == truth
    return wrong / max(1, called), found / different, none / simulations


# docs/noise.md shows the results. In 400 simulations, chance alone changes a share by 1 or 2 percentage points.
@pytest.mark.parametrize("others", [quiet, burst, short_burst, steal, busy])
@pytest.mark.parametrize(("repeats", "simulations"), [(5, 400), pytest.param(10, 2000, marks=pytest.mark.slow)])
def test_a_verdict_that_is_given_is_right(others, repeats, simulations):
    wrong, found, none = simulate(simulations, others, repeats)
    print(
        f"{others.__name__}, {repeats} rounds: wrong {wrong:.1%}, differences found {found:.1%}, no verdict {none:.1%}"
    )
    assert wrong <= 0.05
    if others is busy:
        assert none == 1
    else:
        assert none <= 0.05 and found >= (0.35 if repeats == 5 else 0.8)


def test_without_the_rule_bursts_hide_what_is_true(monkeypatch):
    """If every round counts, true differences are missed in the same simulations."""
    with_rule = simulate(200, burst, 5)[1]
    monkeypatch.setattr("comparison.rounds.BUSY", 2.0)
    assert simulate(200, burst, 5)[1] < with_rule - 0.2


def test_what_disturbs():
    assert disturbs(BUSY + 0.01, 0.95) and not disturbs(BUSY - 0.01, 0.95)
    assert not disturbs(0.2, 1 - IDLE - 0.2 - 0.01)  # there are enough cores for both
    assert disturbs(0.2, None)


def test_rounds_are_taken_again_and_not_for_ever():
    disturbed = [True, False, True]
    assert is_due(disturbed, 3) and is_due([*disturbed, True], 3)
    assert not is_due([False] * 3, 3)
    assert not is_due([*disturbed, True, True], 3)  # at most half as many extra rounds as requested, rounded up
    assert not is_due([True] * 8, 5) and is_due([True] * 7, 5)


def test_too_few_rounds_have_no_ratio_but_least_and_most():
    found = paired_ratio([2.0, 3.0], [1.0, 1.0])
    assert len([2.0, 3.0]) < MIN_ROUNDS
    assert (found.estimate, found.low, found.verdict) == (None, None, None)
    assert (found.least, found.most) == pytest.approx((2, 3))


def test_a_verdict_never_contradicts_the_medians():
    """The pairs say faster, the medians slower. A contradiction was seen: ratio 0.72, medians 17,704 and 15,921."""
    speeds = np.array([10.0, 20.0, 30.0, 98.0, 100.0])
    reference = np.array([9.0, 18.0, 31.0, 88.0, 90.0])
    assert np.median(speeds) < np.median(reference)
    found = paired_ratio(speeds, reference)
    assert found.estimate > 1 and found.verdict == "no difference shown"


def test_outliers_by_the_modified_z_score():
    speeds = [19_000.0, 19_488, 18_900, 795, 19_100, 19_300, 18_700, 19_200]
    assert outliers(speeds, 0.1) == [3]
    assert outliers(speeds[:4], 0.1) == []  # too few
    assert outliers([100.0, 101, 99, 100, 108], 0.1) == []  # off, but by less than a tenth of the median
    assert outliers([100.0, 150, 80, 120, 95], 0.1) == []  # not surprising with this spread
