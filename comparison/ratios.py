"""Ratios of speeds from raw samples: pairs of turns, intervals, verdicts. Simulations test them."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
import scipy  # its parts are imported when they are used: scipy.stats alone takes a second
from numpy.typing import NDArray

CONFIDENCE = 0.95
# Number of rounds -> confidence of Student's interval. In few rounds, a drift of the machine looks like a difference.
# On simulated machines that drift, these intervals miss the true ratio in about 5 % of the cases, see
# tests/comparison/test_ratios.py.
CONFIDENCE_OF_FEW = {3: 0.99, 4: 0.99, 5: 0.97}
RESAMPLES = 4999
TRIMMED_SHARE = 0.25  # share of the pairs left out at either end; the mean of the others is the interquartile mean
MIN_FOR_QUARTILES = 4  # a quartile of fewer samples would only be interpolated between two of them
MIN_ROUNDS = 3  # with fewer rounds there is no interval
WARM_UP_FROM = 5  # with this number of rounds or more, the first round is only a warm-up
MIN_BOOTSTRAP = 9  # the bootstrap interval of fewer pairs is too narrow; see tests/comparison/test_ratios.py
SAME_RATIO = 1e-12  # if the range of samples is smaller, they are equal up to rounding

# Between processes of the same program, the logarithms of speeds have about this standard deviation.
BETWEEN_PROCESSES = 0.03
# Scale of the prior in `ratio_of_turns`. The standard deviation of a ratio of two programs is 1.4 times as large. The
# rest is for --ratio-within: it stops at rounds that happen to agree, see tests/comparison/test_noise.py.
PRIOR_SCALE = 2 * BETWEEN_PROCESSES
MIN_CYCLES = 5  # of a round; the spread of fewer pairs of turns says nothing
MOST_ALIKE = 0.8  # bound of the estimated autocorrelation of turns; estimates from a few cycles are uncertain

Verdict = Literal["faster", "slower", "no difference shown"]


@final
@dataclass(frozen=True)
class Interval:
    """An estimate and the ends of its 95 % interval, which are None with too few samples."""

    estimate: float
    low: float | None
    high: float | None


@final
@dataclass(frozen=True)
class Ratio:
    """A ratio of speeds, its 95 % interval, and its verdict in words; these two are None with too few rounds.

    Attributes:
      rounds: the number of rounds.
      of_these_processes: whether the interval says nothing of fresh processes, since it is from one round.
    """

    estimate: float
    rounds: int
    low: float | None = None
    high: float | None = None
    verdict: Verdict | None = None
    of_these_processes: bool = False

    def is_within(self, share: float) -> bool:
        """Whether the ends of the interval are at most `share` from its middle: 0.03 is 3 %."""
        return self.low is not None and self.high is not None and self.high / self.low <= (1 + share) ** 2


def mean_interval(samples: Sequence[float]) -> Interval:
    """The mean with Student's t interval; a single sample has no interval."""
    mean = float(np.mean(samples))
    if len(samples) < 2:
        return Interval(mean, None, None)
    if np.ptp(samples) < SAME_RATIO:
        return Interval(mean, mean, mean)
    interval = scipy.stats.ttest_1samp(samples, 0).confidence_interval(CONFIDENCE)
    return Interval(mean, float(interval.low), float(interval.high))


def typical_speed(speeds: Sequence[float]) -> float:
    """The trimmed mean of their logarithms, as ratios of turns use it, so that ratios of speeds fit those of turns."""
    return float(np.exp(_trimmed_mean(np.log(np.asarray(speeds)))))


def paired_ratio(speeds: Sequence[float], reference: Sequence[float]) -> Ratio:
    """How many times as fast as the reference, from pairs measured in the same round, in the order of the rounds.

    Whatever slows down a whole round cancels out in its pair. From WARM_UP_FROM rounds on, the first round is left out:
    in it, caches are cold for the run that comes first. The estimate is the trimmed mean of the logarithms of the
    ratios, which a few outliers hardly change. Its interval is a percentile bootstrap over rounds, as Wilcox recommends
    for trimmed means ("Introduction to Robust Estimation and Hypothesis Testing"). With fewer pairs than MIN_BOOTSTRAP
    this interval is too narrow. It is then widened to contain Student's t interval, which has a higher confidence for
    the numbers of rounds in CONFIDENCE_OF_FEW.
    """
    logs = np.log(np.asarray(speeds) / np.asarray(reference))
    if len(logs) < MIN_ROUNDS:
        return Ratio(float(np.exp(_trimmed_mean(logs))), len(logs))
    rounds, confidence = len(logs), CONFIDENCE_OF_FEW.get(len(logs), CONFIDENCE)
    logs = logs[1:] if len(logs) >= WARM_UP_FROM else logs
    interval = scipy.stats.bootstrap(
        (logs,),
        _trimmed_mean,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),  # the same report from the same samples
    ).confidence_interval
    low, high = float(interval.low), float(interval.high)
    if len(logs) < MIN_BOOTSTRAP and np.ptp(logs) > SAME_RATIO:
        t = scipy.stats.ttest_1samp(logs, 0).confidence_interval(confidence)
        low, high = min(low, float(t.low)), max(high, float(t.high))
    estimate = float(np.exp(_trimmed_mean(logs)))
    return Ratio(estimate, rounds, float(np.exp(low)), float(np.exp(high)), _verdict(low, high))


def ratio_of_turns(rounds: Sequence[Sequence[tuple[Hashable, float]]]) -> Ratio:
    """How many times as fast as the reference, from pairs of turns.

    The two programs of a pair trained within the same second, so drift cancels. What differs between processes of the
    same program does not cancel: it is the same in all pairs of a round. So there are two levels (Kalibera and Jones
    2013, "Rigorous Benchmarking in Reasonable Time"). The estimate of a round is a trimmed mean, with Yuen's standard
    error. The rounds are combined like studies in a meta-analysis with random effects (Röver 2020, "Bayesian
    Random-Effects Meta-Analysis Using the bayesmeta R Package"): the rounds' true values have a normal distribution
    with an unknown standard deviation, for which Gelman 2006 ("Prior distributions for variance parameters in
    hierarchical models") recommends a prior that two or three groups need, here half-normal with the scale PRIOR_SCALE.
    So the interval of a few rounds allows for differences between processes that these rounds cannot show. One round
    has an interval of these processes only.

    Args:
      rounds: for each round, in the order of its cycles, the logarithm of the ratio of each pair and its group. Turns
        of a group are alike, such as those with the start of an epoch. A round has MIN_CYCLES pairs or more.
    """
    means, errors = np.array([_mean_of_round(pairs) for pairs in rounds]).T
    deviations, widths = np.zeros(1), np.ones(1)
    if len(means) > 1:
        ends = np.linspace(0, 1, 201) ** 3  # dense near 0, for rounds with small errors
        deviations, widths = (ends[1:] + ends[:-1]) / 2, np.diff(ends)
    variances = deviations[:, None] ** 2 + np.maximum(errors, SAME_RATIO) ** 2
    weights = 1 / variances
    centres = (weights * means).sum(axis=1) / weights.sum(axis=1)
    log_density = (
        -0.5 * (deviations / PRIOR_SCALE) ** 2
        - 0.5 * np.log(variances).sum(axis=1)
        - 0.5 * np.log(weights.sum(axis=1))
        - 0.5 * (weights * (means - centres[:, None]) ** 2).sum(axis=1)
    )
    density = np.exp(log_density - log_density.max()) * widths
    density /= density.sum()
    spreads = weights.sum(axis=1) ** -0.5

    def quantile(share: float) -> float:
        low, high = (centres - 12 * spreads).min(), (centres + 12 * spreads).max()
        return scipy.optimize.brentq(lambda x: density @ scipy.special.ndtr((x - centres) / spreads) - share, low, high)

    low, high = quantile((1 - CONFIDENCE) / 2), quantile((1 + CONFIDENCE) / 2)
    interval = float(np.exp(low)), float(np.exp(high)), _verdict(low, high)
    return Ratio(float(np.exp(density @ centres)), len(means), *interval, of_these_processes=len(means) == 1)


def _mean_of_round(pairs: Sequence[tuple[Hashable, float]]) -> tuple[float, float]:
    """The mean of the groups' trimmed means, each with the weight of its size, and its standard error.

    The error of Yuen 1974 ("The two-sample trimmed t for unequal population variances") for all values around the means
    of their groups, widened from a normal to Student's distribution. Noise that lasts for several cycles makes
    neighbouring values alike; the error then grows as in an autoregressive process of the first order.
    """
    groups, values = [group for group, _ in pairs], np.array([value for _, value in pairs])
    means = {kind: _trimmed_mean(values[[group == kind for group in groups]]) for kind in dict.fromkeys(groups)}
    centres = np.array([means[group] for group in groups])
    residuals = values - centres
    count = len(values)
    cut = int(TRIMMED_SHARE * count)
    kept = count - 2 * cut
    ordered = np.sort(residuals)
    winsorized = np.clip(residuals, ordered[cut], ordered[count - cut - 1])
    error = float(winsorized.std(ddof=len(means))) * np.sqrt((count - 1) / (kept * (kept - 1)))
    wider = scipy.special.stdtrit(kept - 1, (1 + CONFIDENCE) / 2) / scipy.special.ndtri((1 + CONFIDENCE) / 2)
    alike = _autocorrelation(winsorized)
    return float(centres.mean()), float(error * wider * np.sqrt((1 + alike) / (1 - alike)))


def _autocorrelation(values: NDArray[np.float64]) -> float:
    """The autocorrelation of neighbouring values, between 0 and MOST_ALIKE.

    That of n values is too low by (1 + 4 r) / n on average (Marriott and Pope 1954, "Bias in the estimation of
    autocorrelations"), which is corrected.
    """
    deviations = values - values.mean()
    squares = float(deviations @ deviations)
    correlation = float(deviations[1:] @ deviations[:-1]) / squares if squares else 0.0
    return float(np.clip(correlation + (1 + 4 * correlation) / len(values), 0, MOST_ALIKE))


def _trimmed_mean(values: NDArray[np.float64], axis: int = -1) -> Any:
    """Like `stats.trim_mean`, which is ten times slower for a few values."""
    ordered = np.sort(np.moveaxis(values, axis, -1))
    cut = int(TRIMMED_SHARE * ordered.shape[-1])
    return ordered[..., cut : ordered.shape[-1] - cut].mean(axis=-1)


def _verdict(low: float, high: float) -> Verdict:
    """The one rule: a difference if the interval of the logarithm does not contain 0."""
    if low > 0:
        return "faster"
    return "slower" if high < 0 else "no difference shown"
