"""Checks of batch_size."""

from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np

from exercises.checking import check, expect

# A batch, as a multiple of the base batch, and a hint; "": the check's.
RATES = (
    (3, ""),
    (1.625, "does your rule also hold between whole multiples, to the last digit?"),
    (0.25, "does your rule also hold for batches that are smaller than the base batch?"),
    (100, "does the linear rule end at some rate?"),
)


@check("the rate follows the linear rule", "with three times the batch, how many times the rate?")
def rate(work: ModuleType) -> object:
    return work.BASE_RATE, [work.learning_rate(int(work.BASE_BATCH_SIZE * factor)) for factor, _ in RATES]


@rate.judge
def _(seen: Any) -> None:
    base, rates = seen
    for (factor, hint), found in zip(RATES, rates, strict=True):
        wanted = base * factor
        told = f"the rate for {factor:g} times the base batch: yours {found:g}, wanted {wanted:g}"
        expect(abs(found - wanted) < 1e-12, told, hint)


COUNTED = "which steps count? how many images have they together, and how many seconds?"
QUOTIENTS = "is the mean of quotients the quotient of sums?"
# The seconds and the images of the steps after the warm-up, the speed, and a hint.
SPEEDS = (
    ([0.1, 0.1, 0.05], [64, 64, 32], 640, COUNTED),
    ([0.1, 0.1], [64, 16], 400, COUNTED),
    ([0.1, 0.3], [64, 64], 320, QUOTIENTS),
    ([0.1, 0.1, 0.6], [64, 64, 64], 240, QUOTIENTS),
)


@check(
    "speed is images over seconds, without the first steps",
    "what is in the two lists, and from where on does it count?",
)
def speed(work: ModuleType) -> object:
    few = work.WARMUP_STEPS
    return [work.images_per_second([1.0] * few + seconds, [64] * few + images) for seconds, images, *_ in SPEEDS]


@speed.judge
def _(seen: Any) -> None:
    for (seconds, images, wanted, hint), found in zip(SPEEDS, seen, strict=True):
        told = f"after steps of 1 s to warm up, {images} images in {seconds} s"
        expect(abs(found - wanted) < 1e-4, f"{told}: yours {found:.1f} images/s, wanted {wanted}", hint)


# Accuracies after 10, 20, ... steps, less the target; when it is reached; a hint.
HISTORIES = (
    ((-0.5, 0.04, 0.04), 20, "which number of which pair is wanted?"),
    ((-0.5, 0.01, -0.1, 0.04), 20, "accuracy goes up and down"),
    ((-0.5, 0.0, 0.01), 20, "is an accuracy of exactly TARGET enough?"),
    ((-0.5, -0.1), None, "what does the docstring say of a target that is never reached?"),
    ((-0.5, -0.001), None, "is an accuracy just below TARGET enough?"),
)


@check("the steps at which the target is reached first", "what are the two numbers of a pair?")
def steps(work: ModuleType) -> object:
    histories = [[(10 * (n + 1), work.TARGET + more) for n, more in enumerate(one)] for one, *_ in HISTORIES]
    return [(history, work.steps_to_target(list(history))) for history in histories]


@steps.judge
def _(seen: Any) -> None:
    for (_, wanted, hint), (history, found) in zip(HISTORIES, seen, strict=True):
        told = ", ".join(f"{accuracy:.1%} after {steps}" for steps, accuracy in history)
        expect(found == wanted, f"{told} steps: yours {found}, wanted {wanted}", hint)


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
    expect(abs(rate - 1) < 1e-12, f"with a base rate of 0.5 for 10 images, the rate for 20: yours {rate:g}, wanted 1")
    told = f"with 1 step of warm-up, then 10 images in 0.1 s each: yours {speed:.1f} images/s, wanted 100"
    expect(abs(speed - 100) < 1e-6, told)
    told = f"with a target of 0.5, accuracies of 0.4, 0.6 and 1 after 10, 20 and 30 steps: yours {steps}, wanted 20"
    expect(steps == 20, told)


SIZES = [16, 64, 256, 1024]
FORMULA = "for huge batches, what is left of the formula? for which batch is it twice that?"
PAIR = "does each number of steps still belong to its own batch size?"
# Batch sizes, steps, and a hint. Steps can be more with a larger batch, and the sizes can be in any order.
PAIRS = (
    (SIZES, [500, 200, 125, 106.25], FORMULA),
    (SIZES, [510, 190, 131, 104], ""),
    ([64, 256, 1024], [108, 66, 78], PAIR),
    ([256, 8, 64], [40, 300, 90], PAIR),
)


@check(
    "the line has all pairs in it, and errors are in steps",
    "for which line have the errors in steps the smallest squares?",
)
def fitted(work: ModuleType) -> object:
    return [list(map(float, work.critical_batch_size(list(sizes), list(steps)))) for sizes, steps, _ in PAIRS]


@fitted.judge
def _(seen: Any) -> None:
    for (sizes, steps, hint), found in zip(PAIRS, seen, strict=True):
        rows = np.array([[1.0, 1 / size] for size in sizes])
        fewest, slope = np.linalg.lstsq(rows, np.array(steps))[0]
        told = f"steps {steps} with batch sizes {sizes}: yours {found[0]:.2f} and {found[1]:.2f}"
        close = np.allclose(found, (fewest, slope / fewest), rtol=1e-6)
        expect(close, f"{told}, wanted {fewest:.2f} and {slope / fewest:.2f} (least squares)", hint)
