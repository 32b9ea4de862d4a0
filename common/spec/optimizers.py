"""The update rules of all implementations: PyTorch's rules, with all hyperparameters given explicitly.

A step computes new weights and new slots from the gradient g of the loss, the weights w and the step's learning rate r.
Slots begin at zero; `slots` lists their names, in the order of the formulas. t counts the steps taken, from 1; d is the
weight decay. Defaults are PyTorch's, except SGD's momentum and its learning rate.
docs/training.md describes how Keras's own rules differ.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np


def float32(value: float) -> float:
    """The nearest float32, as a Python float: a number that every framework represents exactly."""
    return float(np.float32(value))


OptimizerName = Literal["sgd", "adam", "adamw", "adadelta"]


@dataclass(frozen=True)
class SGD:
    """Gradient descent with momentum (torch.optim.SGD).

        g = g + d w
        v = momentum v + g
        w = w - r (g + momentum v  if nesterov  else  v)

    The velocity v does not contain the learning rate. In Keras it does (v = momentum v - r g; w = w + v). The two rules
    differ as soon as the learning rate changes.
    """

    learning_rate: ClassVar[float] = 0.05
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0

    @property
    def slots(self) -> list[str]:
        return ["velocity"] if self.momentum else []


@dataclass(frozen=True)
class Adam:
    """Kingma and Ba, 2015 (torch.optim.Adam).

    g = g + d w
    m = beta1 m + (1 - beta1) g
    v = beta2 v + (1 - beta2) g^2
    w = w - r / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + epsilon)
    """

    learning_rate: ClassVar[float] = 0.001
    beta1: ClassVar[float] = float32(0.9)
    beta2: ClassVar[float] = float32(0.999)
    epsilon: ClassVar[float] = float32(1e-8)
    weight_decay: float = 0.0
    slots: ClassVar[list[str]] = ["mean", "square"]


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019; torch.optim.AdamW).

    First w = (1 - r d) w; then the update of Adam without weight decay.
    """

    learning_rate: ClassVar[float] = 0.001
    beta1: ClassVar[float] = float32(0.9)
    beta2: ClassVar[float] = float32(0.999)
    epsilon: ClassVar[float] = float32(1e-8)
    weight_decay: float = 0.01
    slots: ClassVar[list[str]] = ["mean", "square"]


@dataclass(frozen=True)
class Adadelta:
    """Zeiler, 2012 (torch.optim.Adadelta).

    g = g + d w
    v = rho v + (1 - rho) g^2
    x = sqrt(u + epsilon) / sqrt(v + epsilon) g
    u = rho u + (1 - rho) x^2
    w = w - r x
    """

    learning_rate: ClassVar[float] = 1.0
    rho: ClassVar[float] = float32(0.9)
    epsilon: ClassVar[float] = float32(1e-6)
    weight_decay: float = 0.0
    slots: ClassVar[list[str]] = ["square", "change"]


Rule = SGD | Adam | AdamW | Adadelta
RULES: dict[OptimizerName, type[Rule]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW, "adadelta": Adadelta}
