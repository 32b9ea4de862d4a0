"""torch.optim.SGD, whose rule is the shared one, see common.optim."""

import torch
from torch import nn

from common.optim import UpdateRule


def make_optimizer(
    model: nn.Module, rule: UpdateRule
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """The optimizer, and the scheduler to be stepped after every step."""
    # A rate of 1 here, times the shared table's rate of each step.
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=1.0,
        momentum=rule.momentum,
        dampening=0,
        weight_decay=rule.weight_decay,
        nesterov=rule.nesterov,
    )
    rates = [*rule.learning_rates.tolist(), 0.0]  # the scheduler looks one step past the last
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rates[step])
