"""torch.optim.SGD, whose rule is the shared one, see common/spec/update_rule.py."""

import torch
from torch import nn

from common.spec.update_rule import UpdateRule


def make_optimizer(
    network: nn.Module, rule: UpdateRule, **options: bool
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """The optimizer, and the scheduler to be stepped after every step. `options`: torch.optim.SGD's, as `fused`."""
    # Instead of a rate of its own: 1, times the shared table's rate of each step.
    optimizer = torch.optim.SGD(
        network.parameters(),
        lr=1.0,
        momentum=rule.momentum,
        dampening=0,
        weight_decay=rule.weight_decay,
        nesterov=rule.nesterov,
        **options,
    )
    if options.get("fused") and rule.momentum:
        # Fused, a first step that is skipped would leave its velocity unset. From zero the rule is the same.
        for parameter in network.parameters():
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    rates = [*rule.learning_rates.tolist(), 0.0]  # the scheduler looks one step past the last
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rates[step])
