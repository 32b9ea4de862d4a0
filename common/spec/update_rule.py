"""The update rule of a configuration, and the learning rate of every step."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.spec.batches import Plan
from common.spec.optimizers import RULES, Rule, float32
from common.spec.options import TrainConfig
from common.spec.schedules import SCHEDULES, Schedule


def spelled_out(config: TrainConfig) -> TrainConfig:
    """Returns `config` with values for all hyperparameters of its update rule and its schedule."""
    values: dict[str, Any] = {"learning_rate": RULES[config.optimizer].learning_rate}
    for kind in (RULES[config.optimizer], SCHEDULES[config.schedule]):
        values |= {field.name: field.default for field in fields(kind)}
    if "step_size" in values:
        values["step_size"] = max(1, -(-config.epochs // 3))
    return config.replace(**{name: value for name, value in values.items() if getattr(config, name) is None})


NORM_EPSILON = 1e-6  # as in torch.nn.utils.clip_grad_norm_


@dataclass(frozen=True)
class UpdateRule:
    """The update rule of a run, with the learning rates of all steps.

    Numbers are rounded to float32 once, since Keras stores its hyperparameters in float32 variables.

    Attributes:
      rule: the rule with its hyperparameters.
      learning_rates: float32 (schedule_steps,), the rate of step s at index s - 1.
      largest_norm: limit for the norm n of the gradients g, summed over all replicas. n is the root of the sum of
        squares over all parameters. The rule is given min(1, largest_norm / (n + NORM_EPSILON)) g. None: it is given g.
    """

    rule: Rule
    learning_rates: NDArray[np.float32]
    largest_norm: float | None

    @classmethod
    def make(cls, config: TrainConfig, plan: Plan) -> "UpdateRule":
        config = spelled_out(config)
        kind: Any = RULES[config.optimizer]
        values: dict[str, Any] = {field.name: getattr(config, field.name) for field in fields(kind)}
        rule = kind(**{name: float32(value) if isinstance(value, float) else value for name, value in values.items()})
        rates = np.array(learning_rates(config, plan), dtype=np.float32)
        norm = config.gradient_clip_val
        return cls(rule, rates, None if norm is None else float32(norm))


@dataclass(frozen=True)
class LossScaling:
    """Dynamic scaling of the loss, so that small gradients don't vanish in float16 (Micikevicius et al., 2018).

    A step is skipped if any replica has a gradient that isn't finite. Then weights and slots do not change, Adam does
    not count the step, and the scale is multiplied by `backoff`. After `growth_interval` steps taken in a row the scale
    is multiplied by `growth`. The learning rate follows the step's number, which includes skipped steps. The numbers
    are those of torch.amp.GradScaler.
    """

    initial: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    growth_interval: int = 2000


def learning_rates(config: TrainConfig, plan: Plan) -> list[float]:
    """The learning rate of every step: linear up to the peak in `warmup_steps`, then the schedule."""
    config = spelled_out(config)
    peak = config.learning_rate
    assert peak is not None
    kind: Any = SCHEDULES[config.schedule]
    schedule: Schedule = kind(**{field.name: getattr(config, field.name) for field in fields(kind)})
    warmup = config.warmup_steps
    rising = [peak * step / warmup for step in range(1, min(warmup, plan.schedule_steps) + 1)]
    return rising + [peak * schedule.factor(step, warmup, plan) for step in range(warmup + 1, plan.schedule_steps + 1)]
