"""Schedules: the factor by which the peak of the learning rate is multiplied in each step.

Each schedule has `factor(step, warmup_steps, plan)`, for steps after the warm-up. `step` counts from 1 and includes the
warm-up. A schedule runs over the steps after the warm-up.
"""

import math
from dataclasses import dataclass
from typing import Literal

from common.spec.batches import Plan

ScheduleName = Literal["constant", "cosine", "step", "one-cycle"]


@dataclass(frozen=True)
class Constant:
    def factor(self, step: int, warmup_steps: int, plan: Plan) -> float:
        return 1.0


@dataclass(frozen=True)
class Cosine:
    """Cosine annealing without restarts (Loshchilov and Hutter, 2017, equation 5, with a minimum of zero).

    The factor would be zero in the step after the last.
    """

    def factor(self, step: int, warmup_steps: int, plan: Plan) -> float:
        return _between(1.0, 0.0, (step - 1 - warmup_steps) / (plan.schedule_steps - warmup_steps))


@dataclass(frozen=True)
class Step:
    """Multiplies by `gamma` after every `step_size` epochs, from the first on (torch.optim.lr_scheduler.StepLR)."""

    step_size: int
    gamma: float = 0.1

    def factor(self, step: int, warmup_steps: int, plan: Plan) -> float:
        return self.gamma ** ((step - 1) // (self.step_size * plan.whole_epoch_steps))


PCT_START, DIV_FACTOR, FINAL_DIV_FACTOR = 0.3, 25.0, 1e4  # the defaults of torch.optim.lr_scheduler.OneCycleLR


@dataclass(frozen=True)
class OneCycle:
    """Rises and then falls, each along half a cosine (Smith and Topin, 2018; torch.optim.lr_scheduler.OneCycleLR).

    The rate rises from peak / DIV_FACTOR to the peak in a share PCT_START of the steps. Then it falls to the first
    rate divided by FINAL_DIV_FACTOR. Momentum does not change: PyTorch's `cycle_momentum` is not included.
    """

    def factor(self, step: int, warmup_steps: int, plan: Plan) -> float:
        num_steps, done = plan.schedule_steps - warmup_steps, step - 1 - warmup_steps
        top, last = PCT_START * num_steps - 1, num_steps - 1
        if done <= top:
            return _between(1 / DIV_FACTOR, 1.0, done / top if top else 1.0)
        return _between(1.0, 1 / DIV_FACTOR / FINAL_DIV_FACTOR, (done - top) / (last - top))


def _between(first: float, last: float, done: float) -> float:
    """The value on half a cosine from `first` to `last`, at the share `done` of the way."""
    return last + (first - last) * 0.5 * (1 + math.cos(math.pi * done))


Schedule = Constant | Cosine | Step | OneCycle
SCHEDULES: dict[ScheduleName, type[Schedule]] = {
    "constant": Constant,
    "cosine": Cosine,
    "step": Step,
    "one-cycle": OneCycle,
}
