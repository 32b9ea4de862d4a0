import numpy as np
import pytest


@pytest.fixture
def work(work, monkeypatch):
    """The work with other settings: it must read them where they stand."""
    for name, value in {"BASE_RATE": 0.5, "BASE_BATCH_SIZE": 32, "WARMUP_STEPS": 1, "TARGET": 0.8}.items():
        monkeypatch.setattr(work, name, value)
    return work


def test_rate(work):
    """the rate follows the linear rule"""
    hint = "the rates for batches of 8, 52, 96 and 3200, if BASE_RATE is 0.5 for 32: how many times the rate is each?"
    assert [round(work.learning_rate(size), 12) for size in (8, 52, 96, 3200)] == [0.125, 0.8125, 1.5, 50.0], hint


def test_speed(work):
    """speed is images over seconds, without the first steps"""
    for seconds, images, wanted in (
        ([1.0, 0.1, 0.1, 0.05], [64, 64, 64, 32], 640.0),
        ([1.0, 0.1, 0.1], [64, 64, 16], 400.0),
        ([1.0, 0.1, 0.1, 0.6], [64, 64, 64, 64], 240.0),
    ):
        hint = f"images/s of {images} images in {seconds} s, with 1 step of warm-up"
        hint += ": which steps count? is the mean of quotients the quotient of sums?"
        assert round(work.images_per_second(seconds, images), 4) == wanted, hint


def test_steps(work):
    """the steps at which the target is reached first"""
    for accuracies, wanted, hint in (
        ((0.3, 0.84, 0.84), 20, "which number of which pair is wanted?"),
        ((0.3, 0.81, 0.7, 0.84), 20, "accuracy goes up and down"),
        ((0.3, 0.8, 0.81), 20, "is an accuracy of exactly TARGET enough?"),
        ((0.3, 0.799), None, "what does the docstring say of a target that is never reached?"),
    ):
        history = [(10 * step, accuracy) for step, accuracy in enumerate(accuracies, start=1)]
        assert work.steps_to_target(history) == wanted, f"TARGET is 0.8, the history {history}: {hint}"


def test_critical_batch_size(work):
    """the line has all pairs in it, and errors are in steps"""
    for sizes, steps, hint in (
        ([16, 64, 256, 1024], [500, 200, 125, 106.25], "for huge batches, what is left of the formula?"),
        ([16, 64, 256, 1024], [510, 190, 131, 104], "for which line have the errors in steps the smallest squares?"),
        ([256, 8, 64], [40, 300, 90], "does each number of steps still belong to its own batch size?"),
    ):
        fewest, slope = np.linalg.lstsq([[1.0, 1 / size] for size in sizes], steps)[0]
        found = [round(float(number), 2) for number in work.critical_batch_size(sizes, steps)]
        wanted = [round(float(number), 2) for number in (fewest, slope / fewest)]
        assert found == wanted, f"steps {steps} with batch sizes {sizes}, least squares in steps: {hint}"
