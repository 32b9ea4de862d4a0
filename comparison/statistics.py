"""Intervals and verdicts from raw samples. How honest they are is tested on simulated timings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

CONFIDENCE = 0.95
RESAMPLES = 9999
MIN_ROUNDS = 3  # below it no interval of a ratio is given
# Wilcoxon's test can't reach 5 % with fewer: of 2 ** 5 patterns of signs the two extreme ones are 6 %.
MIN_WILCOXON = 6

Verdict = Literal["faster", "slower", "no difference shown"]


@dataclass(frozen=True)
class Interval:
    """An estimate; the ends of its 95 % interval are None where there are too few samples for one."""

    estimate: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Ratio(Interval):
    """A ratio of speeds, and what it says in words; None with too few rounds."""

    verdict: Verdict | None


def mean_interval(samples: Sequence[float]) -> Interval:
    """The mean with Student's t interval; without one for a single sample."""
    mean = float(np.mean(samples))
    if len(samples) < 2:
        return Interval(mean, None, None)
    if np.ptp(samples) == 0:
        return Interval(mean, mean, mean)
    found = stats.ttest_1samp(samples, 0).confidence_interval(CONFIDENCE)
    return Interval(mean, float(found.low), float(found.high))


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    low, median, high = np.quantile(samples, [0.25, 0.5, 0.75])
    return float(low), float(median), float(high)


def pseudomedian(values: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
    """Hodges and Lehmann's estimate (1963): the median of the means of all pairs, each value with itself too.

    Nearly as precise as the mean where there are no outliers, and hardly moved by a few of them.
    """
    values = np.moveaxis(values, axis, -1)
    first, second = np.triu_indices(values.shape[-1])
    median: NDArray[np.float64] = np.median((values[..., first] + values[..., second]) / 2, axis=-1)
    return median


def paired_ratio(speeds: Sequence[float], reference: Sequence[float]) -> Ratio:
    """How many times as fast as the reference, from pairs measured in the same round.

    What slows a whole round cancels in its pair. The estimate is the pseudomedian of the logarithms of the
    ratios, its interval a percentile bootstrap over rounds. A plain one is too narrow with few samples; it
    is widened as Hesterberg (2015, "What Teachers Should Know About the Bootstrap", section 4.3) derives it.
    With fewer rounds than MIN_WILCOXON that is still too narrow, and it is joined with Student's t interval.
    A difference is shown where the interval leaves out 1 and, from MIN_WILCOXON rounds on, Wilcoxon's
    signed-rank test agrees at 5 %.
    """
    logs = np.log(np.asarray(speeds) / np.asarray(reference))
    rounds = len(logs)
    estimate = float(np.exp(pseudomedian(logs)))
    if rounds < MIN_ROUNDS:
        return Ratio(estimate, None, None, None)
    tail = stats.norm.cdf(-np.sqrt(rounds / (rounds - 1)) * stats.t.ppf((1 + CONFIDENCE) / 2, rounds - 1))
    found = stats.bootstrap(
        (logs,),
        pseudomedian,
        confidence_level=1 - 2 * tail,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),  # the same report from the same samples
    ).confidence_interval
    low, high = float(found.low), float(found.high)
    agreed = True
    if rounds < MIN_WILCOXON:
        t = stats.ttest_1samp(logs, 0).confidence_interval(CONFIDENCE) if np.ptp(logs) else found
        low, high = min(low, float(t.low)), max(high, float(t.high))
    elif np.any(logs):
        agreed = bool(stats.wilcoxon(logs).pvalue < 1 - CONFIDENCE)
    return Ratio(estimate, float(np.exp(low)), float(np.exp(high)), _verdict(low, high, agreed))


def unpaired_ratio(speeds: Sequence[float], reference: Sequence[float]) -> Ratio:
    """The same for samples that belong to no common round: Welch's t interval of the logarithms.

    Less can be seen so: what slowed one whole set of runs looks like a difference.
    """
    logs, reference_logs = np.log(speeds), np.log(reference)
    estimate = float(np.exp(logs.mean() - reference_logs.mean()))
    if min(len(logs), len(reference_logs)) < 2 or np.ptp(logs) == np.ptp(reference_logs) == 0:
        return Ratio(estimate, None, None, None)
    found: Any = stats.ttest_ind(logs, reference_logs, equal_var=False).confidence_interval(CONFIDENCE)
    low, high = float(found.low), float(found.high)
    return Ratio(estimate, float(np.exp(low)), float(np.exp(high)), _verdict(low, high, True))


def _verdict(low: float, high: float, agreed: bool) -> Verdict:
    if low > 0 and agreed:
        return "faster"
    return "slower" if high < 0 and agreed else "no difference shown"


def outlying(sample: float, others: Sequence[float], least: float) -> bool:
    """Whether `sample` is off the others' median by more than `least` of it and by more than three of their spreads.

    The spread is the median absolute deviation, scaled to be the standard deviation where samples are normal.
    """
    median = float(np.median(others))
    spread = float(stats.median_abs_deviation(others, scale="normal"))
    return abs(sample - median) > max(3 * spread, least * median)
