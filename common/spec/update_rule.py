"""The one update rule of all implementations, PyTorch's SGD, and the learning rate of every step.

With gradient g of the loss, weights w, velocity v (zero at first), momentum mu, weight decay d and the
step's learning rate r (torch.optim.SGD's documentation):

    g = g + d * w
    v = mu * v + g
    w = w - r * (g + mu * v  if Nesterov  else  v)

The rate stays outside the velocity, unlike in Keras (v = mu * v - r * g; w = w + v): the two part as soon
as the rate changes.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.spec.options import TrainConfig


def float32(value: float) -> float:
    """The nearest float32, as a Python float: a number that every framework holds exactly."""
    return float(np.float32(value))


@dataclass(frozen=True)
class UpdateRule:
    """Hyperparameters rounded to float32 once, since Keras keeps its own in float32 variables.

    Attributes:
      learning_rates: float32 (total_steps,), the rate of step s at index s - 1.
    """

    learning_rates: NDArray[np.float32]
    momentum: float
    nesterov: bool
    weight_decay: float

    @classmethod
    def make(cls, config: TrainConfig, total_steps: int) -> "UpdateRule":
        rates = [learning_rate(config, step, total_steps) for step in range(1, total_steps + 1)]
        return cls(
            learning_rates=np.array(rates, dtype=np.float32),
            momentum=float32(config.momentum),
            nesterov=config.nesterov,
            weight_decay=float32(config.weight_decay),
        )


@dataclass(frozen=True)
class LossScaling:
    """Dynamic scaling of the loss, so that small gradients don't vanish in float16 (Micikevicius et al., 2018).

    A step in which any replica has a gradient that isn't finite is skipped: weights and velocities stay, the scale is
    multiplied by `backoff`. After `growth_interval` steps taken in a row it is multiplied by `growth`. The learning
    rate goes by the step's number all the same. The numbers are those of torch.amp.GradScaler.
    """

    initial: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    growth_interval: int = 2000


def learning_rate(config: TrainConfig, step: int, total_steps: int) -> float:
    """The rate of `step` (from 1): linear up to the peak in `warmup_steps`, then the schedule.

    Cosine annealing without restarts (Loshchilov and Hutter, 2017, equation 5, with a minimum of zero):
    the rate would be zero in the step after the last.
    """
    peak = config.learning_rate
    if step <= config.warmup_steps:
        return peak * step / config.warmup_steps
    if config.schedule == "constant":
        return peak
    done = (step - 1 - config.warmup_steps) / (total_steps - config.warmup_steps)
    return peak * 0.5 * (1 + math.cos(math.pi * done))
