"""The statistics, against formulas by hand and on timings with a known truth: how often they are wrong."""

import numpy as np
import pytest
from scipy import integrate, stats

from comparison.ratios import PRIOR_SCALE, paired_ratio, ratio_of_turns

EVEN = (0.5, 0.25, 0.25)


def rounds(rng, count, ratio=1.0, noise=0.1, shares=EVEN, slow_start=1.3):
    """Images per second of an implementation and of a reference in `count` rounds of rotating order.

    Args:
      ratio: how many times as fast the implementation truly is.
      noise: standard deviation of one implementation's log speed over the rounds, without the slow start.
      shares: parts of that variance. First the machine's drift: a trend, waves and at times a step, which affect
        neighbouring runs alike. Then each run's own jitter. Then outliers: one run in twenty is slower.
      slow_start: the very first run takes this many times as long.
    """
    runs = 2 * count
    drift, jitter, outliers = (noise * np.sqrt(share) for share in shares)
    x = np.linspace(0, 1, runs)
    course = rng.normal() * x + np.sin(2 * np.pi * (x * rng.uniform(0.5, 2) + rng.random()))
    if rng.random() < 0.5:
        course += x > rng.random()
    log_seconds = (course - course.mean()) / course.std() * drift + rng.normal(0, jitter, runs)
    probability = 0.05
    scale = outliers / np.sqrt(2 * probability - probability**2)  # of the exponential distribution below
    log_seconds += (rng.random(runs) < probability) * rng.exponential(scale, runs)
    log_seconds[0] += np.log(slow_start)
    first, second = log_seconds[0::2], log_seconds[1::2]
    swapped = np.arange(count) % 2 == 1
    reference, implementation = np.where(swapped, second, first), np.where(swapped, first, second)
    return ratio * np.exp(-implementation), np.exp(-reference)


def verdicts(simulations, count, seed=0, **truth):
    rng = np.random.default_rng(seed)
    found = [paired_ratio(*rounds(rng, count, **truth)).verdict for _ in range(simulations)]
    return {word: found.count(word) / simulations for word in ("faster", "slower", "no difference shown")}


# --- Pairs of whole runs ---


# About 5 % are expected, and up to 7 % where all noise is of one kind. Each number of rounds has a rule of its own. In
# 2,000 simulations, chance alone changes the share by 0.5 %.
@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 5, 8, 12])
def test_an_implementation_against_itself_is_seldom_called_different(count):
    for truth in ({"slow_start": 1.0}, {"slow_start": 1.3}):
        found = verdicts(2000, count, **truth)
        assert found["faster"] + found["slower"] <= 0.065, truth
    for shares in ((0.9, 0.1, 0), (0, 0.1, 0.9), (0, 1, 0)) if count in (5, 12) else ():
        found = verdicts(2000, count, shares=shares)
        assert found["faster"] + found["slower"] <= 0.07, shares


@pytest.mark.slow
def test_a_difference_of_10_percent_at_10_percent_noise_is_found_in_10_rounds():
    for slow_start in (1.3, 3):
        assert verdicts(2000, 10, seed=2, ratio=1.1, slow_start=slow_start)["faster"] >= 0.8
        assert verdicts(2000, 10, seed=3, ratio=1 / 1.1, slow_start=slow_start)["slower"] >= 0.8


def test_intervals_cover_the_truth():
    rng = np.random.default_rng(2)
    found = [paired_ratio(*rounds(rng, 8, ratio=1.3, slow_start=1)) for _ in range(300)]
    covered = sum(one.low <= 1.3 <= one.high for one in found) / 300
    assert covered >= 0.95 - 0.025, covered
    assert np.median([one.estimate for one in found]) == pytest.approx(1.3, rel=0.01)


def test_an_outlier_hardly_moves_a_ratio_and_equal_samples_have_one():
    speeds, reference = np.full(10, 200.0), np.full(10, 100.0)
    speeds[3] = 20
    assert paired_ratio(speeds, reference).estimate == pytest.approx(2)
    assert paired_ratio(speeds, reference).verdict == "faster"
    assert paired_ratio(speeds, reference) == paired_ratio(speeds, reference)  # the bootstrap has its own seed
    equal = paired_ratio([2.0, 3.0, 4.0], [2.0, 3.0, 4.0])
    assert (equal.estimate, equal.low, equal.high, equal.verdict) == (1, 1, 1, "no difference shown")


# --- Turns; more in test_noise.py ---


def turns(*rounds):
    """The ratio of turns that are all alike."""
    return ratio_of_turns([[(0, value) for value in values] for values in rounds])


def alternating(rng, count=20):
    """Log ratios whose neighbours are not alike."""
    return 0.1 + np.tile([1, -1], count // 2) * rng.uniform(0.01, 0.05, count)


def by_hand(values):
    """The trimmed mean of a round, and Yuen's standard error."""
    kept = len(values) - 2 * int(len(values) / 4)
    winsorized = np.asarray(stats.mstats.winsorize(values, (0.25, 0.25)))
    return stats.trim_mean(values, 0.25), np.sqrt(len(values) * winsorized.var() / (kept * (kept - 1))), kept


def test_one_round_has_yuens_interval():
    values = alternating(np.random.default_rng(4))
    mean, error, kept = by_hand(values)
    found, half = turns(values), stats.t.ppf(0.975, kept - 1) * error
    assert np.log([found.low, found.estimate, found.high]) == pytest.approx([mean - half, mean, mean + half])
    assert found.of_these_processes and found.verdict == "faster"


def test_rounds_are_combined_as_studies_with_random_effects():
    rng = np.random.default_rng(5)
    rounds = [alternating(rng), alternating(rng) + 0.04, alternating(rng) - 0.02]
    means, errors, kept = np.array([by_hand(values) for values in rounds]).T
    errors *= stats.t.ppf(0.975, kept - 1) / stats.norm.ppf(0.975)

    def posterior(spread, x=None):
        """Of the spread between rounds; with x, times the probability that the common mean is below it."""
        variances = spread**2 + errors**2
        centre, width = np.average(means, weights=1 / variances), (1 / variances).sum() ** -0.5
        likelihood = stats.norm.pdf(means, centre, np.sqrt(variances)).prod() * width
        below = 1 if x is None else stats.norm.cdf(x, centre, width)
        return stats.halfnorm.pdf(spread, scale=PRIOR_SCALE) * likelihood * below

    found, whole = turns(*rounds), integrate.quad(posterior, 0, 1, points=[0.05, 0.2])[0]
    for end, share in ((found.low, 0.025), (found.high, 0.975)):
        below = integrate.quad(posterior, 0, 1, args=(np.log(end),), points=[0.05, 0.2])[0] / whole
        assert below == pytest.approx(share, rel=0.01)
    assert not found.of_these_processes


def test_pairs_in_which_an_epoch_starts_have_their_share():
    """They are a tenth of all, and half as fast: a plain trimmed mean would cut them off."""
    assert ratio_of_turns([[(0, 0.0)] * 18 + [(1, np.log(0.5))] * 2]).estimate == pytest.approx(0.5**0.1)


def test_rounds_that_agree_still_leave_room_for_other_processes():
    both = turns([0.1, 0.1001, 0.1] * 3, [0.1001, 0.1, 0.1001] * 3)
    assert both.is_within(0.2) and not both.is_within(0.002)


def test_noise_of_several_cycles_counts_as_fewer_turns():
    wide, narrow = turns(np.repeat([0.1, -0.1], 20)), turns(np.tile([0.1, -0.1], 20))
    assert np.log(wide.high / wide.low) > 2.5 * np.log(narrow.high / narrow.low)
