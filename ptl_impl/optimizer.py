"""pt_impl's optimizer and scheduler, as Lightning takes them."""

from typing import Any

from torch import nn

from common.optim import UpdateRule
from pt_impl import optimizer as pt_optimizer

OptimizerAndScheduler = dict[str, Any]


def make_optimizer(model: nn.Module, rule: UpdateRule) -> OptimizerAndScheduler:
    """What `configure_optimizers` returns."""
    optimizer, scheduler = pt_optimizer.make_optimizer(model, rule)
    return {"optimizer": optimizer, "lr_scheduler": scheduler}
