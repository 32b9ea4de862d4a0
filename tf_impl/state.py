"""The state of a training in Keras, on any backend. Its names and layouts are canonical; see common/spec/state.py."""

import keras
from keras import ops

from common.experiment import Experiment
from common.spec.own_network import to_canonical, to_native
from common.spec.state import TrainState
from tf_impl.rules import RuleOptimizer
from tf_impl.weights import get_weights, named_parameters

BACKEND = keras.backend.backend()


def get_state(experiment: Experiment, network: keras.Model, optimizer: RuleOptimizer, step: int) -> TrainState:
    """The state after `step` steps."""
    if BACKEND == "jax":  # the steps leave their arrays in fit's own state until the end of an epoch
        network.jax_state_sync()
    parameters = named_parameters(network)
    # Copies: the next step may change the variables' memory.
    slots = {}
    for slot, variables in zip(experiment.update_rule.rule.slots, optimizer.slots(), strict=True):
        arrays = {name: ops.convert_to_numpy(own).copy() for name, own in zip(parameters, variables, strict=True)}
        slots[slot] = to_canonical(network.layout, arrays)
    scale = optimizer.loss_scale.get_state() if optimizer.loss_scale else None
    differ = tuple(name for name, variable in parameters.items() if replicas_differ(network, variable))
    weights = {name: array.copy() for name, array in get_weights(network).items()}
    return TrainState(step, weights, slots, scale, differ)


def set_state(experiment: Experiment, network: keras.Model, optimizer: RuleOptimizer) -> None:
    """Restores a new optimizer from the experiment's state; weights are restored elsewhere."""
    state = experiment.state
    assert state
    optimizer.iterations.assign(state.step)
    for slot, variables in zip(state.slots, optimizer.slots(), strict=True):
        arrays = to_native(network.layout, state.slots[slot])
        for name, variable in zip(named_parameters(network), variables, strict=True):
            if name in arrays:
                variable.assign(arrays[name])
    if optimizer.loss_scale and state.scale:
        optimizer.loss_scale.set_state(state.scale)


def replicas_differ(network: keras.Model, variable: keras.Variable) -> bool:
    """Whether this process's replicas, which only TensorFlow has, have different values of a variable."""
    if BACKEND != "tensorflow":
        return False
    first, *others = network.distribute_strategy.experimental_local_results(variable.value)
    return any((first.numpy() != other.numpy()).any() for other in others)
