"""The state of a training in TensorFlow. Its names and layouts are the canonical ones; see common/spec/state.py."""

import keras

from common.experiment import Experiment
from common.spec.networks import Weights
from common.spec.state import TrainState
from tf_impl.optimizer import Optimizer
from tf_impl.replicas import replicas_differ
from tf_impl.weights import get_weights, named_parameters


def get_state(experiment: Experiment, network: keras.Model, optimizer: Optimizer, step: int) -> TrainState:
    """The state after `step` steps."""
    parameters = named_parameters(network)
    names = list(parameters)
    slots = {
        name: _arrays(names, variables)
        for name, variables in zip(experiment.update_rule.rule.slots, optimizer.slots(), strict=True)
    }
    scale = optimizer.loss_scale.get_state() if optimizer.loss_scale else None
    differ = tuple(name for name, variable in parameters.items() if replicas_differ(network, variable))
    weights = {name: array.copy() for name, array in get_weights(network).items()}
    return TrainState(step, weights, slots, scale, differ)


def set_state(experiment: Experiment, network: keras.Model, optimizer: Optimizer) -> None:
    """Restores a new optimizer from the experiment's state."""
    state, names = experiment.state, list(named_parameters(network))
    assert state
    optimizer.iterations.assign(state.step)
    for slot, variables in zip(state.slots, optimizer.slots(), strict=True):
        for name, variable in zip(names, variables, strict=True):
            variable.assign(state.slots[slot][name])
    if optimizer.loss_scale and state.scale:
        optimizer.loss_scale.set_state(state.scale, state.steps_taken)


def _arrays(names: list[str], variables: list[keras.Variable]) -> Weights:
    """Copies of the variables' values: the next step may change the variables' memory."""
    return {name: variable.numpy().copy() for name, variable in zip(names, variables, strict=True)}
