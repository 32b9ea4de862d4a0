"""The options of the update rule and its schedule; unset ones get their default from rules.py and schedules.py."""

from dataclasses import fields
from typing import Self

from pydantic import BaseModel, model_validator

from common.platform.errors import option_name
from common.spec.option_kinds import option
from common.spec.rules import RULES, OptimizerName
from common.spec.schedules import SCHEDULES, ScheduleName


def _defaults(name: str) -> str:
    """The defaults of a hyperparameter by update rule: `0.05 (sgd), 0.001 (adam, adamw)`."""
    names: dict[str, list[str]] = {}
    for optimizer, rule in RULES.items():
        if hasattr(rule, name):
            names.setdefault(f"{getattr(rule, name):g}", []).append(optimizer)
    return ", ".join(f"{value} ({', '.join(of)})" for value, of in names.items())


class UpdateOptions(BaseModel):
    """Options for how a step changes the weights."""

    optimizer: OptimizerName = option("training", "sgd", description="the update rule, PyTorch's form of it")
    learning_rate: float | None = option(
        "training",
        None,
        gt=0,
        le=1e38,
        allow_inf_nan=False,
        description=f"the learning rate, or the peak of its schedule; unset: {_defaults('learning_rate')}",
    )
    scale_learning_rate: int | None = option(
        "training",
        None,
        gt=0,
        description="the batch size N that the learning rate is meant for: it is multiplied by the examples of a step"
        " / N; unset: not scaled",
    )
    warmup_steps: int = option(
        "training", 0, ge=0, le=10**9, description="steps of linear warm-up before the schedule starts"
    )
    schedule: ScheduleName = option(
        "training",
        "cosine",
        description="the learning rate after warm-up; cosine: down to zero, nearly reached in the last step; step:"
        " times --gamma every --step-size epochs; one-cycle: up to the peak and down again",
    )
    step_size: int | None = option(
        "training", None, gt=0, description="schedule step: epochs between two changes; unset: a third of all"
    )
    gamma: float | None = option(
        "training", None, gt=0, le=1, description="schedule step: factor of each change; unset: 0.1"
    )
    pct_start: float | None = option(
        "training", None, gt=0, lt=1, description="schedule one-cycle: share of the steps before the peak; unset: 0.3"
    )
    div_factor: float | None = option(
        "training", None, ge=1, le=1e38, description="schedule one-cycle: the peak over the first rate; unset: 25"
    )
    final_div_factor: float | None = option(
        "training", None, ge=1, le=1e38, description="schedule one-cycle: the first rate over the last; unset: 10000"
    )
    momentum: float | None = option(
        "training", None, ge=0, lt=1, description=f"momentum; unset: {_defaults('momentum')}"
    )
    nesterov: bool | None = option("training", None, description="sgd: Nesterov momentum; unset: false")
    beta1: float | None = option(
        "training", None, ge=0, lt=1, description="adam, adamw: decay of the gradients' mean; unset: 0.9"
    )
    beta2: float | None = option(
        "training", None, ge=0, lt=1, description="adam, adamw: decay of the squared gradients' mean; unset: 0.999"
    )
    amsgrad: bool | None = option(
        "training", None, description="adam, adamw: divide by the largest of these means so far; unset: false"
    )
    rho: float | None = option(
        "training", None, ge=0, lt=1, description="adadelta: decay of the means of squares; unset: 0.9"
    )
    alpha: float | None = option(
        "training", None, ge=0, lt=1, description="rmsprop: decay of the squared gradients' mean; unset: 0.99"
    )
    centered: bool | None = option(
        "training", None, description="rmsprop: divide by the gradients' standard deviation; unset: false"
    )
    epsilon: float | None = option(
        "training",
        None,
        gt=0,
        le=1,
        description=f"added to the divisor, to keep it from zero; unset: {_defaults('epsilon')}",
    )
    weight_decay: float | None = option(
        "training",
        None,
        ge=0,
        le=1e38,
        allow_inf_nan=False,
        description="L2 penalty added to every gradient; adamw: subtracted from the weights directly; unset:"
        f" {_defaults('weight_decay')}",
    )

    accumulate_grad_batches: int = option(
        "training",
        1,
        gt=0,
        le=10**6,
        description="batches whose gradients are combined into one step: K batches act as one K times as large",
    )
    gradient_clip_val: float | None = option(
        "training",
        None,
        gt=0,
        le=1e38,
        description="if the norm of all gradients together is larger than this, scale them down to it; unset: never",
    )
    ema_decay: float | None = option(
        "training",
        None,
        gt=0,
        lt=1,
        description="evaluate and keep a moving average of the weights, of which each step keeps this share; unset: the"
        " weights themselves",
    )

    @model_validator(mode="after")
    def _fits_its_rule(self) -> Self:
        for chooser, kinds in (("optimizer", RULES), ("schedule", SCHEDULES)):
            chosen = getattr(self, chooser)
            names = {kind: [one.name for one in fields(schema)] for kind, schema in kinds.items()}
            for name in dict.fromkeys(name for of_kind in names.values() for name in of_kind):
                value = getattr(self, name)
                if value is not None and name not in names[chosen]:
                    having = " or ".join(kind for kind, of_kind in names.items() if name in of_kind)
                    shown = str(value).lower() if isinstance(value, bool) else value
                    raise ValueError(f"{option_name(name)} {shown}: needs --{chooser} {having}, not {chosen}")
        if self.nesterov and self.momentum == 0:
            raise ValueError("--nesterov true needs --momentum above 0")
        return self
