"""Whether the accuracies of two rows differ by more than chance explains."""

import numpy as np
import pandas as pd
import scipy

from common.record.predictions import Predictions
from comparison.run.store import Run

MIN_SEEDS = 3  # for a test over seeds
UNLIKELY_DIFFERENCE = 0.001  # probability by chance
SAME_ACCURACY = 1e-12  # accuracies that differ by less are equal


def accuracies_differ_clearly(runs: pd.DataFrame, others: pd.DataFrame) -> bool:
    """Whether chance would rarely make the accuracies of two rows as different as they are; False if nobody knows.

    From MIN_SEEDS seeds on, by Student's t test of the differences of runs with the same seed. With fewer, by McNemar's
    exact test of the predictions of two runs with the same seed: rounding alone makes networks of the same training
    differ, and each of them is then right as often as the other where only one is.
    """
    firsts, other_firsts = ({run.record.seed: run for run in of["run"].iloc[::-1]} for of in (runs, others))
    seeds = sorted(firsts.keys() & other_firsts.keys())
    if len(seeds) < MIN_SEEDS:
        return any(_chance_of_predictions(firsts[seed], other_firsts[seed]) < UNLIKELY_DIFFERENCE for seed in seeds)
    means, other_means = (of.groupby("seed")["test_accuracy"].mean()[seeds] for of in (runs, others))
    differences = means - other_means
    if np.ptp(differences) < SAME_ACCURACY:
        return bool(abs(differences.iloc[0]) > SAME_ACCURACY)
    return bool(scipy.stats.ttest_rel(means, other_means).pvalue < UNLIKELY_DIFFERENCE)


def _chance_of_predictions(run: Run, other: Run) -> float:
    one, two = Predictions.read(run.run_dir), Predictions.read(other.run_dir)
    right, others_right = one.guesses == one.labels, two.guesses == two.labels
    only, others_only = int(np.sum(right & ~others_right)), int(np.sum(others_right & ~right))
    return float(scipy.stats.binomtest(only, only + others_only).pvalue) if only + others_only else 1.0
