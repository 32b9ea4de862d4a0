import numpy as np
import pytest

from common.spec.options import TrainConfig
from common.spec.update_rule import UpdateRule, learning_rate


def rates(total_steps, **options):
    config = TrainConfig(**options)
    return [learning_rate(config, step, total_steps) for step in range(1, total_steps + 1)]


def test_constant():
    assert rates(3, learning_rate=0.05, schedule="constant") == [0.05] * 3


def test_cosine_starts_at_the_peak_and_would_be_zero_after_the_last_step():
    found = rates(4, learning_rate=2.0, schedule="cosine")
    assert found == pytest.approx([2.0, 1 + np.sqrt(0.5), 1.0, 1 - np.sqrt(0.5)])


def test_warmup_is_linear_and_reaches_the_peak_in_its_last_step():
    found = rates(8, learning_rate=0.4, schedule="cosine", warmup_steps=4)
    assert found[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
    assert found[5] < 0.4


def test_hyperparameters_are_numbers_that_float32_holds():
    rule = UpdateRule.make(TrainConfig(learning_rate=0.05, momentum=0.9, weight_decay=1e-4), 7)
    assert rule.learning_rates.dtype == np.float32
    assert rule.momentum != 0.9 and rule.momentum == float(np.float32(0.9))
    assert rule.weight_decay == float(np.float32(1e-4))
