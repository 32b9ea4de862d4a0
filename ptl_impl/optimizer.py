"""pt_impl's optimizer and scheduler, in the form that Lightning expects."""

from typing import Any

from torch import nn

from common.experiment import Experiment
from pt_impl import optimizer as pt_optimizer

OptimizerAndScheduler = dict[str, Any]


def make_optimizer(network: nn.Module, experiment: Experiment) -> OptimizerAndScheduler:
    """The return value of `configure_optimizers`. The rate changes after every step, not after every epoch."""
    options: dict[str, Any] = {}
    if experiment.config.mode == "tuned":
        from pt_impl import tuning

        options = tuning.optimizer_options(experiment.config)
    optimizer, scheduler = pt_optimizer.make_optimizer(
        network, experiment.update_rule, experiment.plan.first_step, **options
    )
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
