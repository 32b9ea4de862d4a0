"""Simulated timings of two implementations on a realistic machine, to test the statistics against a known truth."""

import numpy as np


def rounds(rng, count, ratio=1.0, noise=0.1, shares=(0.5, 0.25, 0.25), slow_start=1.3):
    """Images per second of an implementation and of a reference in `count` rounds of rotating order.

    Args:
      ratio: how many times as fast the implementation truly is.
      noise: standard deviation of one implementation's log speed over the rounds, without the slow start.
      shares: parts of that variance. First the machine's drift: a trend, waves and at times a step, which affect
        neighbouring runs alike. Then each run's own jitter. Then outliers: one run in twenty is slower, at times
        much slower.
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


# --- Others' load: seen by the measurement or not ---


def burst(rng, count):
    """Other programs slow one run in five, up to twentyfold where threads spin; their load is measured.

    Returns (as the functions below):
      Of each run, the increase of its log duration, and the share of the cores that others were measured to use.
    """
    hit = rng.random(count) < 0.2
    share = rng.uniform(0.15, 0.9, count) * hit
    return share * rng.uniform(0.5, 3.3, count), share


def short_burst(rng, count):
    """Other programs slow one run in twenty, for too short a time to show in the measured load."""
    hit = rng.random(count) < 0.05
    return rng.exponential(0.7, count) * hit, rng.uniform(0, 0.08, count)


def steal(rng, count):
    """Other tenants use between none and half of the processors, in waves that last several runs."""
    wave = np.sin(2 * np.pi * (np.arange(count) / rng.uniform(6, 20) + rng.random()))
    share = np.clip(0.5 * wave + rng.normal(0, 0.05, count), 0, 0.5)
    return -np.log1p(-share), share


def busy(rng, count):
    """Other programs keep the machine busy all the time."""
    share = rng.uniform(0.3, 0.6, count)
    return share * rng.uniform(0.3, 2, count), share


def quiet(rng, count):
    return np.zeros(count), rng.uniform(0, 0.05, count)
