"""The TensorFlow implementation with Keras's own optimizers instead of the shared rules, for benchmarks.rules.

python -m benchmarks.loops.tf_own_rule defaults|same ...: with Keras's own hyperparameters, or with the shared ones.
"""

import sys
from typing import Any

import keras

import tf_impl.train
from common.platform.cli import parse_options
from common.platform.program import as_program, exit_now
from common.spec.options import TrainConfig
from common.spec.rules import SGD, Adadelta, Adam, AdamW, RMSprop, Rule
from common.spec.update_rule import UpdateRule
from tf_impl.launch import main
from tf_impl.optimizer import LearningRates

OWN: dict[type[Rule], type[keras.optimizers.Optimizer]] = {
    SGD: keras.optimizers.SGD,
    Adam: keras.optimizers.Adam,
    AdamW: keras.optimizers.AdamW,
    Adadelta: keras.optimizers.Adadelta,
    RMSprop: keras.optimizers.RMSprop,
}
# Name of a hyperparameter -> Keras's name, where they differ.
KERAS_NAMES = {"beta1": "beta_1", "beta2": "beta_2", "alpha": "rho"}


def make_own(which: str, update_rule: UpdateRule) -> keras.optimizers.Optimizer:
    """Keras's optimizer for this rule, in the form that train.py needs: no scaled loss and no skipped steps."""
    rule = update_rule.rule
    given: dict[str, Any] = {KERAS_NAMES.get(name, name): value for name, value in vars(rule).items()}
    if which == "defaults":  # nobody uses SGD without momentum
        given = {name: given[name] for name in ("momentum", "nesterov") if isinstance(rule, SGD)}
    elif not given["weight_decay"]:
        del given["weight_decay"]
    unscaled = {"scale_loss": lambda self, loss: loss, "skipped_steps": None}
    return type("Own", (OWN[type(rule)],), unscaled)(LearningRates(update_rule), **given)


if __name__ == "__main__":
    which = sys.argv.pop(1)

    def make_optimizer(network: keras.Model, update_rule: UpdateRule, config: TrainConfig) -> Any:
        optimizer = make_own(which, update_rule)
        optimizer.build(network.trainable_variables)
        return optimizer

    tf_impl.train.make_optimizer = make_optimizer
    with as_program("benchmarks.loops.tf_own_rule"):
        main(parse_options(TrainConfig, "python -m benchmarks.loops.tf_own_rule", "Keras's own update rules."))
        exit_now(0)
