"""Intervals and verdicts from raw samples. Tests with simulated timings check how often they are right."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

CONFIDENCE = 0.95
# Number of rounds -> confidence of Student's interval. In few rounds, a drift of the machine looks like a difference.
# On simulated machines that drift, these intervals miss the true ratio in about 5 % of the cases, see
# tests/comparison/test_intervals.py.
CONFIDENCE_OF_FEW = {3: 0.99, 4: 0.99, 5: 0.97}
RESAMPLES = 4999
TRIM = 0.25  # share of the pairs left out at either end; the mean of the others is the interquartile mean
MIN_FOR_QUARTILES = 4  # a quartile of fewer samples would only be interpolated between two of them
MIN_ROUNDS = 3  # with fewer rounds there is no ratio and no interval
WARM_UP_FROM = 5  # with this number of rounds or more, the first round is only a warm-up
MIN_BOOTSTRAP = 9  # the bootstrap interval of fewer pairs is too narrow; see tests/comparison/test_intervals.py
SAME = 1e-12  # if the range of samples is smaller, they are equal up to rounding

Verdict = Literal["faster", "slower", "no difference shown"]


@dataclass(frozen=True)
class Interval:
    """An estimate and the ends of its 95 % interval, which are None with too few samples."""

    estimate: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Ratio:
    """A ratio of speeds, its 95 % interval, and its verdict in words; all of these are None with too few rounds.

    Attributes:
      least, most: the lowest and the highest ratio of a single round; of any two runs if they are not paired.
    """

    least: float
    most: float
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: Verdict | None = None


def mean_interval(samples: Sequence[float]) -> Interval:
    """The mean with Student's t interval; a single sample has no interval."""
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

    Whatever slows down a whole round cancels out in its pair. From WARM_UP_FROM rounds on, the first round is left out:
    in it, caches are cold for the run that comes first. The estimate is the trimmed mean of the logarithms of the
    ratios, which a few outliers hardly change. Its interval is a percentile bootstrap over rounds, as Wilcox recommends
    for trimmed means ("Introduction to Robust Estimation and Hypothesis Testing"). With fewer pairs than MIN_BOOTSTRAP
    this interval is too narrow. It is then widened to contain Student's t interval, which has a higher confidence for
    the numbers of rounds in CONFIDENCE_OF_FEW.

    The verdict is a difference if the interval does not contain 1, unless the ratio of the medians says the opposite.
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
    """The same for samples that are not paired by rounds: Welch's t interval of the logarithms.

    This is weaker than pairs: whatever slowed down one whole set of runs looks like a difference.
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
    """Indices of outliers: speeds with a modified z-score above OUTLIER_Z that differ from the median by over `least`.

    The modified z-score is the distance of a speed's logarithm from the median, divided by the median absolute
    deviation. This is scaled to equal the standard deviation if samples are normal. `least` is a share of the median.
    With fewer speeds than MIN_FOR_OUTLIERS there are no outliers.
    """
    logs = np.log(speeds)
    if len(logs) < MIN_FOR_OUTLIERS:
        return []
    distances = np.abs(logs - np.median(logs))
    spread = float(stats.median_abs_deviation(logs, scale="normal"))
    return np.flatnonzero(distances > max(OUTLIER_Z * spread, np.log1p(least))).tolist()


def outlying(sample: float, others: Sequence[float], least: float) -> bool:
    """Whether `sample` differs from the others' median by more than the share `least` and by more than three spreads.

    The spread is the others' median absolute deviation, scaled to equal the standard deviation if they are normal.
    """
    median = float(np.median(others))
    spread = float(stats.median_abs_deviation(others, scale="normal"))
    return abs(sample - median) > max(3 * spread, least * median)
