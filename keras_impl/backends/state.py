"""The state of a training in Keras, on any backend. Its names and layouts are canonical; see common/spec/state.py."""

from collections.abc import Callable

import keras

from common.experiment import Experiment
from common.spec.networks import Weights
from common.spec.state import TrainState
from keras_impl.backends.optimizer import Optimizer
from tf_impl.weights import get_weights, named_parameters


def get_state(
    experiment: Experiment, network: keras.Model, optimizer: Optimizer, sync: Callable[[], None], step: int
) -> TrainState:
    """The state after `step` steps. `sync`: gives the variables the values that fit has computed."""
    sync()
    names = list(named_parameters(network))
    slots = {
        name: _arrays(names, variables)
        for name, variables in zip(experiment.update_rule.rule.slots, optimizer.slots(), strict=True)
    }
    return TrainState(step, {name: array.copy() for name, array in get_weights(network).items()}, slots)


def set_state(experiment: Experiment, network: keras.Model, optimizer: Optimizer) -> None:
    """Restores a new optimizer from the experiment's state."""
    state, names = experiment.state, list(named_parameters(network))
    assert state
    optimizer.iterations.assign(state.step)
    for slot, variables in zip(experiment.update_rule.rule.slots, optimizer.slots(), strict=True):
        for name, variable in zip(names, variables, strict=True):
            variable.assign(state.slots[slot][name])


def _arrays(names: list[str], variables: list[keras.Variable]) -> Weights:
    return {name: keras.ops.convert_to_numpy(variable).copy() for name, variable in zip(names, variables, strict=True)}
