"""The state of a training in JAX. Its names and layouts are the canonical ones; see common/spec/state.py."""

from flax import nnx

from common.experiment import Experiment
from common.spec import optimizers as rules
from common.spec.own_network import to_canonical, to_native
from common.spec.state import TrainState
from jax_impl.networks import Network
from jax_impl.precision import LossScale
from jax_impl.replicas import replicas_differ
from jax_impl.weights import assign_variables, canonical_name, get_weights, named_arrays, to_arrays, variables

# Rule -> canonical name of a slot -> optax's name.
ADAM = {"mean": "mu", "square": "nu"}
SLOTS: dict[type[rules.Rule], dict[str, str]] = {
    rules.SGD: {"velocity": "trace"},
    rules.Adam: ADAM,
    rules.AdamW: ADAM,
    rules.Adadelta: {"square": "e_g", "change": "e_x"},
}


def get_state(
    experiment: Experiment, network: Network, optimizer: nnx.Optimizer[Network], scale: LossScale | None, step: int
) -> TrainState:
    """The state after `step` steps. Every process must call it: each may have only a part."""
    slots = {
        slot: to_canonical(network.layout, to_arrays(own))
        for slot, own in slot_variables(experiment, optimizer).items()
    }
    trained = named_arrays(network, nnx.Param)
    differ = tuple(name for name, variable in trained.items() if replicas_differ(variable[...]))
    return TrainState(step, get_weights(network), slots, scale.get_state() if scale else None, differ)


def set_state(experiment: Experiment, optimizer: nnx.Optimizer[Network], scale: LossScale | None) -> None:
    """Restores a new optimizer and scale from the experiment's state; the weights are restored elsewhere."""
    state = experiment.state
    assert state
    for slot, own in slot_variables(experiment, optimizer).items():
        assign_variables(own, to_native(experiment.network.layout_in("jax"), state.slots[slot]))
    for path, counter in variables(optimizer, nnx.OptState):
        if path[-1] in ("step", "count"):
            # The last link of the chain counts all steps, for the learning rate. Skipped ones don't count for the rule.
            of_rule = path[-1] == "count" and path[1] == 0
            counter[...] = counter[...] + (state.steps_taken if of_rule else state.step)
    if scale and state.scale:
        scale.set_state(state.scale)


def slot_variables(experiment: Experiment, optimizer: nnx.Optimizer[Network]) -> dict[str, dict[str, nnx.Variable]]:
    """Canonical name of each slot -> canonical name of each trained parameter -> variable."""
    rule = experiment.update_rule.rule
    found: dict[str, dict[str, nnx.Variable]] = {slot: {} for slot in rule.slots}
    for path, variable in variables(optimizer, nnx.OptState):
        for slot in rule.slots:
            if (name := SLOTS[type(rule)][slot]) in path:
                found[slot][canonical_name(path[path.index(name) + 1 :])] = variable
    return found
