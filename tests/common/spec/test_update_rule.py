import dataclasses
import json
import sys

import numpy as np
import pytest
from conftest import run

from common.spec.batches import Plan
from common.spec.optimizers import RULES
from common.spec.options import TrainConfig
from common.spec.schedules import SCHEDULES
from common.spec.update_rule import learning_rates, spelled_out


def rates(total_steps, epochs=1, **options):
    """The learning rate of each step; `total_steps`: of all `epochs` together."""
    plan = Plan.make(64 * total_steps // epochs, 64, epochs, -1)
    assert plan.total_steps == total_steps
    config = TrainConfig(epochs=epochs, batch_size=64, **options)
    return learning_rates(config, plan)


def test_step_changes_after_each_third_of_the_epochs_by_default():
    found = [spelled_out(TrainConfig(schedule="step", epochs=epochs)).step_size for epochs in (1, 3, 10)]
    assert found == [1, 1, 4]


def test_one_cycle_goes_up_to_the_peak_and_down_again_after_the_warmup():
    found = rates(105, learning_rate=0.4, schedule="one-cycle", warmup_steps=5)
    assert found[:6] == pytest.approx([0.08, 0.16, 0.24, 0.32, 0.4, 0.016])
    assert found[34] == pytest.approx(0.4) and found[-1] == pytest.approx(1.6e-6)
    assert np.all(np.diff(found[5:35]) > 0) and np.all(np.diff(found[34:]) < 0)
    for steps in (1, 2, 3, 5):  # there is a rate for every step, however few there are
        assert all(0 < rate <= 0.5 for rate in rates(steps, learning_rate=0.5, schedule="one-cycle"))


TORCHS = """
import json, torch
def rates(schedule, steps):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.4)
    scheduler = schedule(optimizer)
    for _ in range(steps):
        yield optimizer.param_groups[0]["lr"]
        optimizer.step()
        scheduler.step()
torchs = torch.optim.lr_scheduler
for steps in (7, 100):
    one_cycle = lambda one: torchs.OneCycleLR(one, max_lr=0.4, total_steps=steps, cycle_momentum=False)
    every_two_epochs = lambda one: torchs.StepLR(one, step_size=2 * steps, gamma=0.3)
    cosine = lambda one: torchs.CosineAnnealingLR(one, T_max=steps)
    found = rates(one_cycle, steps), rates(every_two_epochs, 5 * steps), rates(cosine, steps)
    print(json.dumps([*map(list, found)]))
"""


@pytest.mark.slow
def test_schedules_are_pytorchs():
    for steps, line in zip((7, 100), run(sys.executable, "-c", TORCHS).stdout.splitlines(), strict=True):
        one_cycle, step, cosine = json.loads(line)
        assert rates(steps, learning_rate=0.4, schedule="one-cycle") == pytest.approx(one_cycle, rel=1e-12)
        assert rates(steps, learning_rate=0.4, schedule="cosine") == pytest.approx(cosine, rel=1e-12)
        options = {"learning_rate": 0.4, "schedule": "step", "step_size": 2, "gamma": 0.3}
        assert rates(5 * steps, epochs=5, **options) == pytest.approx(step, rel=1e-12)


@pytest.mark.parametrize("optimizer", RULES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_hyperparameter_is_spelled_out_and_no_other(optimizer, schedule):
    config = spelled_out(TrainConfig(optimizer=optimizer, schedule=schedule, epochs=9))

    def names(*kinds):
        return {field.name for kind in kinds for field in dataclasses.fields(kind)}

    own, every = names(RULES[optimizer], SCHEDULES[schedule]), names(*RULES.values(), *SCHEDULES.values())
    assert {name for name in every if getattr(config, name) is not None} == own
    assert config.learning_rate == RULES[optimizer].learning_rate and spelled_out(config) == config
    assert spelled_out(TrainConfig(optimizer=optimizer, learning_rate=0.125)).learning_rate == 0.125
