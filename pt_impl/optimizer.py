"""torch.optim's optimizers, whose rules are the shared ones, see common/spec/optimizers.py."""

from typing import Any

import torch
from torch import nn

from common.spec.optimizers import SGD, Adadelta, Adam, AdamW
from common.spec.update_rule import UpdateRule


def make_optimizer(
    network: nn.Module, update_rule: UpdateRule, first_step: int, **options: bool
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """The optimizer, and the scheduler, whose `step` is called after every training step.

    Args:
      first_step: the first step that is taken with them; 1 unless a training is resumed.
      options: options of torch.optim, such as `fused`.
    """
    rule = update_rule.rule
    # The optimizer's own rate is 1; the scheduler multiplies it by each step's rate from the shared table.
    common: dict[str, Any] = {"lr": 1.0, "weight_decay": rule.weight_decay, **options}
    match rule:
        case SGD():
            optimizer = torch.optim.SGD(
                network.parameters(), momentum=rule.momentum, dampening=0, nesterov=rule.nesterov, **common
            )
            if options.get("fused") and rule.momentum:
                # In a fused optimizer, a skipped first step would leave the velocity unset. From zero, the rule is the
                # same.
                for parameter in network.parameters():
                    optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        case Adam() | AdamW():
            kind = torch.optim.Adam if isinstance(rule, Adam) else torch.optim.AdamW
            betas = (rule.beta1, rule.beta2)
            optimizer = kind(network.parameters(), betas=betas, eps=rule.epsilon, **common)
        case Adadelta():
            optimizer = torch.optim.Adadelta(network.parameters(), rho=rule.rho, eps=rule.epsilon, **common)
    # The scheduler reads one rate more, after the last step.
    rates = [*update_rule.learning_rates.tolist()[first_step - 1 :], 0.0]
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rates[step])
