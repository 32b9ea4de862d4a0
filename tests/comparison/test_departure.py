import numpy as np
import pytest

from comparison.lockstep import ROUNDINGS, lockstep, loss_differences


def test_differences_are_relative_above_a_loss_of_1_and_absolute_below():
    assert loss_differences([2.0, 0.5], [2.2, 0.6]) == pytest.approx([0.1, 0.1])


@pytest.mark.parametrize(("precision", "tolerances"), [("32", (1e-5, 1e-3)), ("64", (1e-10, 1e-10))])
def test_the_first_ten_steps_decide(precision, tolerances):
    reference = list(np.linspace(2.0, 1.5, 20))
    late = [*reference[:10], *(loss * 1.1 for loss in reference[10:])]
    found = lockstep(reference, late, ROUNDINGS[precision])
    assert found.same_training and found.first_steps == 0 and found.all_steps == pytest.approx(0.1)
    for step, tolerance in zip((0, 9), tolerances, strict=True):
        early = list(reference)
        early[step] *= 1 + 2 * tolerance
        assert not lockstep(reference, early, ROUNDINGS[precision]).same_training
        early[step] = reference[step] * (1 + 0.5 * tolerance)
        assert lockstep(reference, early, ROUNDINGS[precision]).same_training


def test_float32_may_drift_as_far_as_rounding_was_seen_to_and_no_further():
    assert ROUNDINGS["32"].allowed(10) == pytest.approx(
        [1e-5] * 4 + [2.15e-5, 4.64e-5, 1e-4, 2.15e-4, 4.64e-4, 1e-3], rel=0.01
    )
    seen = [1e-7, 0, 1e-7, 1e-7, 0, 0, 1e-6, 2e-6, 4e-6, 5e-5, 1e-4, 3e-5, 5e-4, 1e-4]
    reference = [2.0] * len(seen)
    assert lockstep(reference, [2 * (1 + one) for one in seen], ROUNDINGS["32"]).same_training
    assert not lockstep(reference, [2 * (1 + one) for one in seen], ROUNDINGS["64"]).same_training
    assert not lockstep(reference, [2 * (1 + 1000 * one) for one in seen], ROUNDINGS["32"]).same_training


def test_another_number_of_steps_is_another_training():
    assert not lockstep([1.0] * 12, [1.0] * 11, ROUNDINGS["32"]).same_training
    assert lockstep([], [], ROUNDINGS["32"]).same_training and not lockstep([1.0], [], ROUNDINGS["32"]).same_training


def test_a_loss_that_is_no_number_is_no_agreement():
    assert not lockstep([1.0, 1.0], [1.0, float("nan")], ROUNDINGS["32"]).same_training
