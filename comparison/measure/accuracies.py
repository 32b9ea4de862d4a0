"""Whether the accuracies of two rows differ by more than chance explains."""

import statistics
from collections.abc import Sequence

import numpy as np
from scipy import stats

from common.record.predictions import Predictions
from comparison.run.store import Run

MIN_SEEDS = 3  # for a test over seeds
UNLIKELY = 0.001  # probability by chance
SAME = 1e-12  # accuracies that differ by less are equal


def accuracies_differ_clearly(runs: Sequence[Run], others: Sequence[Run]) -> bool:
    """Whether chance would rarely make the accuracies of two rows as different as they are; False if nobody knows.

    From MIN_SEEDS seeds on, by Student's t test of the differences of runs with the same seed. With fewer, by McNemar's
    exact test of the predictions of two runs with the same seed: rounding alone makes networks of the same training
    differ, and each of them is then right as often as the other where only one is.
    """
    by_seed, others_by_seed = runs_by_seed(runs), runs_by_seed(others)
    seeds = sorted(by_seed.keys() & others_by_seed.keys())
    if len(seeds) >= MIN_SEEDS:
        return _chance_of_means(*([_mean(of[seed]) for seed in seeds] for of in (by_seed, others_by_seed))) < UNLIKELY
    return any(_chance_of_predictions(by_seed[seed][0], others_by_seed[seed][0]) < UNLIKELY for seed in seeds)


def runs_by_seed(runs: Sequence[Run]) -> dict[int, list[Run]]:
    """Seed -> the runs with this seed, in their order."""
    by_seed: dict[int, list[Run]] = {}
    for run in runs:
        by_seed.setdefault(run.record.seed, []).append(run)
    return by_seed


def _mean(runs: Sequence[Run]) -> float:
    return statistics.fmean(run.result.test_accuracy for run in runs if run.result)


def _chance_of_means(means: Sequence[float], others: Sequence[float]) -> float:
    differences = np.subtract(means, others)
    if np.ptp(differences) < SAME:
        return 1.0 if abs(differences[0]) < SAME else 0.0
    return float(stats.ttest_rel(means, others).pvalue)


def _chance_of_predictions(run: Run, other: Run) -> float:
    one, two = Predictions.read(run.run_dir), Predictions.read(other.run_dir)
    right, others_right = one.guesses == one.labels, two.guesses == two.labels
    if len(right) != len(others_right):
        return 1.0
    only, others_only = int(np.sum(right & ~others_right)), int(np.sum(others_right & ~right))
    return float(stats.binomtest(only, only + others_only).pvalue) if only + others_only else 1.0
