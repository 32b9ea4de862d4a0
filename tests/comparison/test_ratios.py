"""The statistics on timings with a known truth: how often they are wrong, and how often they find a difference."""

import numpy as np
import pytest
from simulation import rounds

from comparison.ratios import Ratio, mean_interval, paired_ratio, quartiles, ratio_of_turns


def verdicts(simulations, count, seed=0, **truth):
    rng = np.random.default_rng(seed)
    found = [paired_ratio(*rounds(rng, count, **truth)).verdict for _ in range(simulations)]
    return {word: found.count(word) / simulations for word in ("faster", "slower", "no difference shown")}


# About 5 % are expected. 0.7 to 5.9 % were measured with the noise of `simulation.rounds`, and up to 6.9 % where all of
# the noise is outliers or jitter. In 2,000 simulations, chance alone changes the share by 0.5 %.
@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 4, 5, 6, 8, 10, 12, 20])
def test_an_implementation_against_itself_is_seldom_called_different(count):
    for slow_start in (1.0, 1.3):
        found = verdicts(2000, count, slow_start=slow_start)
        assert found["faster"] + found["slower"] <= 0.065, found


@pytest.mark.slow
@pytest.mark.parametrize("count", [5, 10])
@pytest.mark.parametrize("shares", [(0.9, 0.1, 0), (0, 0.1, 0.9), (0, 1, 0)], ids=["drift", "outliers", "jitter"])
def test_nor_where_all_noise_is_of_one_kind(count, shares):
    found = verdicts(2000, count, shares=shares)
    assert found["faster"] + found["slower"] <= 0.07, found


@pytest.mark.slow
@pytest.mark.parametrize("slow_start", [1.3, 3])
def test_a_difference_of_10_percent_at_10_percent_noise_is_found_in_10_rounds(slow_start):
    assert verdicts(2000, 10, seed=2, ratio=1.1, slow_start=slow_start)["faster"] >= 0.8
    assert verdicts(2000, 10, seed=3, ratio=1 / 1.1, slow_start=slow_start)["slower"] >= 0.8


def test_pairs_see_a_difference_that_drift_would_hide():
    rng = np.random.default_rng(1)
    samples = [rounds(rng, 10, ratio=1.1, shares=(0.9, 0.1, 0), slow_start=1) for _ in range(100)]
    paired = sum(paired_ratio(*sample).verdict == "faster" for sample in samples)
    assert paired >= 95, paired


def test_intervals_cover_the_truth():
    rng = np.random.default_rng(2)
    found = [paired_ratio(*rounds(rng, 8, ratio=1.3, slow_start=1)) for _ in range(300)]
    covered = sum(one.low <= 1.3 <= one.high for one in found) / 300
    assert covered >= 0.95 - 0.025, covered
    assert np.median([one.estimate for one in found]) == pytest.approx(1.3, rel=0.01)


def test_an_outlier_hardly_moves_a_ratio():
    speeds, reference = np.full(10, 200.0), np.full(10, 100.0)
    speeds[3] = 20
    found = paired_ratio(speeds, reference)
    assert found.estimate == pytest.approx(2) and found.verdict == "faster"


def test_few_or_equal_samples():
    assert paired_ratio([2.0], [1.0]).verdict is None
    assert paired_ratio([2.0, 2.1], [1.0, 1.0]).low is None
    equal = paired_ratio([2.0, 3.0, 4.0], [2.0, 3.0, 4.0])
    assert (equal.estimate, equal.low, equal.high, equal.verdict) == (1, 1, 1, "no difference shown")
    for count in (3, 8):
        double = paired_ratio([2.0] * count, [1.0] * count)
        assert double.estimate == pytest.approx(2) and double.verdict == "faster"


def test_the_same_samples_give_the_same_interval():
    one = rounds(np.random.default_rng(3), 7)
    assert paired_ratio(*one) == paired_ratio(*one)


def turns(*rounds):
    """The ratio of turns that are all alike."""
    return ratio_of_turns([[(0, value) for value in values] for values in rounds])


def test_one_round_says_nothing_of_other_processes():
    rng = np.random.default_rng(4)
    first, second, third = rng.normal(0.1, 0.02, (3, 30))
    alone, both, all_three = turns(first), turns(first, second), turns(first, second, third)
    assert alone.of_these_processes and not both.of_these_processes and alone.verdict == "faster"
    assert alone.high / alone.low < all_three.high / all_three.low < both.high / both.low


def test_rounds_that_agree_to_rounding_still_leave_room_for_other_processes():
    both = turns([0.1] * 9, [0.1] * 9)
    assert both.estimate == pytest.approx(np.exp(0.1))
    assert turns([0.1, 0.1001, 0.1] * 3, [0.1001, 0.1, 0.1001] * 3).is_within(0.2)
    assert not turns([0.1, 0.1001, 0.1] * 3, [0.1001, 0.1, 0.1001] * 3).is_within(0.002)


def test_noise_of_several_cycles_counts_as_fewer_turns():
    values = np.repeat([0.1, -0.1], 20)
    alternating = np.tile([0.1, -0.1], 20)
    wide, narrow = turns(values), turns(alternating)
    assert np.log(wide.high / wide.low) > 2.5 * np.log(narrow.high / narrow.low)


def test_within_is_a_share_of_the_ratio():
    def ratio(low, high):
        return Ratio(1, 1, 1.0, low, high)

    assert ratio(2 / 1.03, 2 * 1.03).is_within(0.0301) and not ratio(2 / 1.03, 2 * 1.03).is_within(0.0299)
    assert not Ratio(1, 1).is_within(0.5)


def test_the_interval_of_a_mean_is_students():
    found = mean_interval([0.97, 0.98, 0.99])
    half = 4.302652729911275 * 0.01 / np.sqrt(3)  # t(0.975, 2), from any table of Student's t
    assert (found.estimate, found.low, found.high) == pytest.approx((0.98, 0.98 - half, 0.98 + half))
    assert mean_interval([0.5]).low is None
    assert mean_interval([0.5, 0.5]) == type(found)(0.5, 0.5, 0.5)


def test_quartiles():
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2, 3, 4)
