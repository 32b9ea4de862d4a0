"""Intervals and verdicts from raw samples. How honest they are is tested on simulated timings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

CONFIDENCE = 0.95
# Asked of Student's interval with so few rounds, in which a drift of the machine looks like a difference: on simulated
# machines that drift it then leaves out the truth in about 5 %, see tests/comparison/test_intervals.py.
CONFIDENCE_OF_FEW = {3: 0.99, 4: 0.99, 5: 0.97}
RESAMPLES = 4999
TRIM = 0.25  # of the pairs at either end; what is left is the interquartile mean
MIN_FOR_QUARTILES = 4  # of fewer samples a quartile would be made up between two of them
MIN_ROUNDS = 3  # below it no ratio is given, and no interval
WARM_UP_FROM = 5  # with so many rounds, the first one only warms the machine up
MIN_BOOTSTRAP = 9  # a bootstrap of fewer pairs is too narrow; see tests/comparison/test_intervals.py
SAME = 1e-12  # samples that differ by less, all in all, are equal to rounding

Verdict = Literal["faster", "slower", "no difference shown"]


@dataclass(frozen=True)
class Interval:
    """An estimate; the ends of its 95 % interval are None where there are too few samples for one."""

    estimate: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Ratio:
    """A ratio of speeds, its 95 % interval, and what it says in words; all of them None with too few rounds.

    Attributes:
      least, most: of the ratios of single rounds.
    """

    least: float
    most: float
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: Verdict | None = None


def mean_interval(samples: Sequence[float]) -> Interval:
    """The mean with Student's t interval; without one for a single sample."""
    mean = float(np.mean(samples))
    if len(samples) < 2:
        return Interval(mean, None, None)
    if np.ptp(samples) < SAME:
        return Interval(mean, mean, mean)
    found = stats.ttest_1samp(samples, 0).confidence_interval(CONFIDENCE)
    return Interval(mean, float(found.low), float(found.high))


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    low, median, high = np.quantile(samples, [0.25, 0.5, 0.75])
    return float(low), float(median), float(high)


def paired_ratio(speeds: Sequence[float], reference: Sequence[float]) -> Ratio:
    """How many times as fast as the reference, from pairs measured in the same round, in the order of the rounds.

    What slows a whole round cancels in its pair. From WARM_UP_FROM rounds on, the first one is left out, in
    which caches are cold for whoever comes first. The estimate is the trimmed mean of the logarithms of the
    ratios, which a few outliers hardly move; its interval a percentile bootstrap over rounds, as Wilcox
    recommends for trimmed means ("Introduction to Robust Estimation and Hypothesis Testing"). With fewer
    pairs than MIN_BOOTSTRAP that is too narrow, and the interval is the hull of it and Student's t interval, of which
    more is asked with CONFIDENCE_OF_FEW rounds.
    A difference is shown where the interval leaves out 1, unless the medians that stand beside it say the opposite.
    """
    logs = np.log(np.asarray(speeds) / np.asarray(reference))
    least, most = float(np.exp(logs.min())), float(np.exp(logs.max()))
    if len(logs) < MIN_ROUNDS:
        return Ratio(least, most)
    medians = float(np.log(np.median(speeds) / np.median(reference)))
    confidence = CONFIDENCE_OF_FEW.get(len(logs), CONFIDENCE)
    logs = logs[1:] if len(logs) >= WARM_UP_FROM else logs
    found = stats.bootstrap(
        (logs,),
        _trimmed_mean,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),  # the same report from the same samples
    ).confidence_interval
    low, high = float(found.low), float(found.high)
    if len(logs) < MIN_BOOTSTRAP and np.ptp(logs) > SAME:
        t = stats.ttest_1samp(logs, 0).confidence_interval(confidence)
        low, high = min(low, float(t.low)), max(high, float(t.high))
    estimate = float(_trimmed_mean(logs))
    verdict = _verdict(low, high) if estimate * medians >= 0 else "no difference shown"
    return Ratio(least, most, float(np.exp(estimate)), float(np.exp(low)), float(np.exp(high)), verdict)


def _trimmed_mean(values: NDArray[np.float64], axis: int = -1) -> Any:
    return stats.trim_mean(values, TRIM, axis=axis)


def unpaired_ratio(speeds: Sequence[float], reference: Sequence[float]) -> Ratio:
    """The same for samples that belong to no common round: Welch's t interval of the logarithms.

    Less can be seen so: what slowed one whole set of runs looks like a difference.
    """
    logs, reference_logs = np.log(speeds), np.log(reference)
    least, most = float(min(speeds) / max(reference)), float(max(speeds) / min(reference))
    if min(len(logs), len(reference_logs)) < MIN_ROUNDS:
        return Ratio(least, most)
    estimate = float(np.exp(logs.mean() - reference_logs.mean()))
    if max(np.ptp(logs), np.ptp(reference_logs)) < SAME:
        return Ratio(least, most, estimate)
    found: Any = stats.ttest_ind(logs, reference_logs, equal_var=False).confidence_interval(CONFIDENCE)
    low, high = float(found.low), float(found.high)
    return Ratio(least, most, estimate, float(np.exp(low)), float(np.exp(high)), _verdict(low, high))


def _verdict(low: float, high: float) -> Verdict:
    if low > 0:
        return "faster"
    return "slower" if high < 0 else "no difference shown"


# Iglewicz and Hoaglin 1993, "How to Detect and Handle Outliers": modified z-scores above 3.5.
OUTLIER_Z, MIN_FOR_OUTLIERS = 3.5, 5


def outliers(speeds: Sequence[float], least: float) -> list[int]:
    """Indices of speeds whose logarithms have a modified z-score above OUTLIER_Z and that are off by more than `least`.

    The modified z-score is the distance from the median in median absolute deviations, scaled to be standard deviations
    where samples are normal. Of fewer than MIN_FOR_OUTLIERS nothing can be said.
    """
    logs = np.log(speeds)
    if len(logs) < MIN_FOR_OUTLIERS:
        return []
    distances = np.abs(logs - np.median(logs))
    spread = float(stats.median_abs_deviation(logs, scale="normal"))
    return np.flatnonzero(distances > max(OUTLIER_Z * spread, np.log1p(least))).tolist()


def outlying(sample: float, others: Sequence[float], least: float) -> bool:
    """Whether `sample` is off the others' median by more than `least` of it and by more than three of their spreads.

    The spread is the median absolute deviation, scaled to be the standard deviation where samples are normal.
    """
    median = float(np.median(others))
    spread = float(stats.median_abs_deviation(others, scale="normal"))
    return abs(sample - median) > max(3 * spread, least * median)
