"""Converts the state of a training in PyTorch to canonical arrays and back; see common/spec/state.py."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from common.experiment import Experiment
from common.spec import optimizers as rules
from common.spec.state import TrainState
from pt_impl.precision import LossScaler
from pt_impl.weights import get_weights, to_canonical, to_native

# Rule -> canonical name of a slot -> torch.optim's name.
ADAM = {"mean": "exp_avg", "square": "exp_avg_sq"}
SLOTS: dict[type[rules.Rule], dict[str, str]] = {
    rules.SGD: {"velocity": "momentum_buffer"},
    rules.Adam: ADAM,
    rules.AdamW: ADAM,
    rules.Adadelta: {"square": "square_avg", "change": "acc_delta"},
}


def get_state(
    experiment: Experiment, network: nn.Module, optimizer: torch.optim.Optimizer, scaler: LossScaler, step: int
) -> TrainState:
    """The state after `step` steps. Every replica must call it: each may have only a part.

    Args:
      network: the network that is trained, not wrapped.
    """
    spec, rule = experiment.network, experiment.update_rule.rule
    slots = {}
    for slot in rule.slots:
        values = {}
        for name, parameter in network.named_parameters():
            # A slot is zero before the first step, and may not exist yet.
            kept = optimizer.state[parameter].get(SLOTS[type(rule)][slot])
            values[name] = torch.zeros_like(parameter) if kept is None else kept
        slots[slot] = to_canonical(values, spec, trained=True)
    return TrainState(step, get_weights(network, spec), slots, scaler.get_state())


def set_state(experiment: Experiment, network: nn.Module, optimizer: torch.optim.Optimizer, scaler: LossScaler) -> None:
    """Restores a new optimizer and scaler from the experiment's state; weights are restored elsewhere."""
    state, rule = experiment.state, experiment.update_rule.rule
    assert state
    slots = {slot: to_native(values, experiment.network) for slot, values in state.slots.items()}
    for name, tensor in network.named_parameters():
        kept: dict[str, torch.Tensor] = {}
        if not isinstance(rule, rules.SGD):
            kept["step"] = torch.tensor(float(state.steps_taken))
            if optimizer.defaults.get("fused"):
                kept["step"] = kept["step"].to(tensor.device)
        for slot, arrays in slots.items():
            kept[SLOTS[type(rule)][slot]] = _like(tensor, arrays[name])
        if kept:
            optimizer.state[tensor] = kept
    if state.scale:
        scaler.set_state(state.scale)


def _like(tensor: torch.Tensor, array: NDArray[np.floating]) -> torch.Tensor:
    """`array` with the device, precision and memory layout of `tensor`; this rank's share if `tensor` is a share."""
    whole = torch.from_numpy(array.copy()).to(tensor.device, tensor.dtype)
    if hasattr(tensor, "to_local"):
        from torch.distributed.tensor import distribute_tensor  # imported here: it takes half a second

        return distribute_tensor(whole, tensor.device_mesh, tensor.placements)
    return torch.zeros_like(tensor, requires_grad=False).copy_(whole)
