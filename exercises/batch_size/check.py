"""Checks of batch_size."""

from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np

from exercises.checking import check, expect

FACTORS = (0.25, 1, 1.625, 3, 16, 100)  # of the base batch size


@check("the linear rule", "three times the batch")
def rate(work: ModuleType) -> object:
    return work.BASE_RATE, [work.learning_rate(int(work.BASE_BATCH_SIZE * factor)) for factor in FACTORS]


@rate.judge
def _(seen: Any) -> None:
    base, rates = seen
    for factor, found in zip(FACTORS, rates, strict=True):
        wanted = base * factor
        expect(
            abs(found - wanted) < 1e-12,
            f"the rate for {factor:g} times the base batch: yours {found:g}, wanted {wanted:g}",
        )


@check("speed is images over seconds, without the first steps", "is the mean of quotients the quotient of sums?")
def speed(work: ModuleType) -> object:
    few = work.WARMUP_STEPS
    return [
        work.images_per_second([1.0] * few + [0.1] * 10, [64] * (few + 10)),
        work.images_per_second([0.1] * (few + 2), [64] * (few + 1) + [16]),
        work.images_per_second([0.1] * few + [0.1, 0.3], [64] * (few + 2)),
        work.images_per_second([0.1] * few + [0.1, 0.1, 0.6], [64] * (few + 3)),
    ]


@speed.judge
def _(seen: Any) -> None:
    steady, uneven, jittery, paused = seen
    for told, found, wanted in (
        ("slow first steps, then 64 images in 0.1 s each", steady, 640),
        ("64 images and then 16, in 0.1 s each", uneven, 400),
        ("64 images in 0.1 s and then 64 in 0.3 s", jittery, 320),
        ("64 images each in 0.1, 0.1 and 0.6 s", paused, 240),
    ):
        expect(abs(found - wanted) < 1e-6, f"{told}: yours {found:.1f} images/s, wanted {wanted}")


@check("the steps at which the target is reached first", "accuracy goes up and down")
def steps(work: ModuleType) -> object:
    target = work.TARGET
    return (
        work.steps_to_target([(10, 0.5), (20, target), (30, target - 0.1), (40, 1.0)]),
        work.steps_to_target([(10, 0.5), (20, target - 0.001)]),
    )


@steps.judge
def _(seen: Any) -> None:
    reached, never = seen
    expect(reached == 20, f"the target was reached after 20 steps, lost, and reached again: {reached}")
    expect(never is None, f"the target was never reached: {never}")


@check(
    "the settings are read where they are written down", "which numbers of the file's head stand in your lines again?"
)
def settings(work: ModuleType) -> object:
    with mock.patch.multiple(work, BASE_RATE=0.5, BASE_BATCH_SIZE=10, WARMUP_STEPS=1, TARGET=0.5):
        return (
            work.learning_rate(20),
            work.images_per_second([1.0, 0.1, 0.1], [10, 10, 10]),
            work.steps_to_target([(10, 0.4), (20, 0.6), (30, 1.0)]),
        )


@settings.judge
def _(seen: Any) -> None:
    rate, speed, steps = seen
    expect(abs(rate - 1) < 1e-12, f"with a base rate of 0.5 for 10 images, the rate for 20 is {rate:g}")
    expect(abs(speed - 100) < 1e-6, f"with 1 step of warm-up, then 10 images in 0.1 s each: {speed:.1f} images/s")
    expect(steps == 20, f"with a target of 0.5, accuracies of 0.4, 0.6 and 1 after 10, 20 and 30 steps: {steps}")


SIZES = [16, 64, 256, 1024]
# Batch sizes and steps. Steps can be more with a larger batch, and the sizes can be in any order.
PAIRS = ((SIZES, [510, 190, 131, 104]), ([64, 256, 1024], [108, 66, 78]), ([256, 8, 64], [40, 300, 90]))


@check("all pairs have a say, and errors are in steps", "a line through two points knows nothing of the others")
def fitted(work: ModuleType) -> object:
    return [list(map(float, work.critical_batch_size(list(sizes), list(steps)))) for sizes, steps in PAIRS]


@fitted.judge
def _(seen: Any) -> None:
    for (sizes, steps), found in zip(PAIRS, seen, strict=True):
        rows = np.array([[1.0, 1 / size] for size in sizes])
        fewest, slope = np.linalg.lstsq(rows, np.array(steps, float))[0]
        told = f"steps {steps} with batch sizes {sizes}: yours {found[0]:.2f} and {found[1]:.2f}"
        close = np.allclose(found, (fewest, slope / fewest), rtol=1e-6)
        expect(close, f"{told}, wanted {fewest:.2f} and {slope / fewest:.2f} (least squares)")


CRITICAL = ((100.0, 64.0), (20.0, 1000.0))  # fewest steps, critical batch size


@check("fewest steps and critical batch size are found again", "for huge batches, what is left of the formula?")
def critical(work: ModuleType) -> object:
    return [
        list(map(float, work.critical_batch_size(SIZES, [fewest * (1 + batch / size) for size in SIZES])))
        for fewest, batch in CRITICAL
    ]


@critical.judge
def _(seen: Any) -> None:
    for (fewest, batch), found in zip(CRITICAL, seen, strict=True):
        close = abs(found[0] - fewest) < 1e-6 * fewest and abs(found[1] - batch) < 1e-6 * batch
        expect(close, f"{fewest:g} steps at least, critical batch size {batch:g}: {found[0]:g} and {found[1]:g}")
