"""Inspection beside the training: the first batch layer by layer, and the predictions of the trained network."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from common.experiment import Experiment
from common.record.recorder import Recorder
from common.spec.batches import EVAL_BATCH_SIZE
from common.spec.layers import Conv, Dense
from common.spec.networks import NetworkSpec, Weights
from pt_impl.data import Prepare
from pt_impl.networks import make_network
from pt_impl.precision import make_autocast
from pt_impl.replicas import gather_over_replicas, sum_over_replicas
from pt_impl.weights import flattened_to_canonical, load_weights, statistics_kept, to_canonical

# --- First batch: for comparing implementations layer by layer ---


def save_first_batch(
    experiment: Experiment, network: nn.Module, backward: Callable[[], object], recorder: Recorder
) -> None:
    """Writes every layer's output and every parameter's gradient on a batch, before any step.

    `backward`: adds the gradients of the batch.
    """
    outputs, hooks = watch_activations(network, experiment.network)
    with statistics_kept(network):
        backward()
    for hook in hooks:
        hook.remove()
    write_first_batch(experiment, network, outputs, recorder)
    network.zero_grad(set_to_none=True)


def write_first_batch(
    experiment: Experiment,
    network: nn.Module,
    outputs: Weights,
    recorder: Recorder,
    loss_scale: float = 1.0,
    reduced: bool = True,
) -> None:
    """Gathers the outputs from all replicas and writes them, with the gradients that `network` has.

    Args:
      loss_scale: factor by which the loss was multiplied before the backward pass.
      reduced: whether the gradients have been averaged over the replicas.
    """
    gradients = {name: parameter.grad / loss_scale for name, parameter in network.named_parameters()}
    if not reduced:
        gradients = {
            name: sum_over_replicas(gradient) / experiment.config.num_shards for name, gradient in gradients.items()
        }
    parts = gather_over_replicas(outputs)
    activations = {name: np.concatenate([part[name] for part in parts]) for name in outputs}
    recorder.save_first_batch(activations, to_canonical(gradients, experiment.network, trained=True))


def watch_activations(network: nn.Module, spec: NetworkSpec) -> tuple[Weights, list[torch.utils.hooks.RemovableHandle]]:
    """Canonical layer name -> its output, and `input`, filled in by the next forward pass; and the hooks, to remove."""
    outputs: Weights = {}
    dtype = next(network.parameters()).dtype
    modules = dict(network.named_modules())

    def hook(name: str) -> Callable[..., None]:
        def keep(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            # Autocast makes outputs in half precision, which NumPy supports only in part. Copied, since a ReLU may work
            # in place.
            array = output.detach().to(dtype, copy=True).cpu().numpy()
            if array.ndim == 4:  # NCHW -> NHWC
                array = array.transpose(0, 2, 3, 1).reshape(len(array), *spec.activations[name])
            elif name in spec.flattened:
                array = flattened_to_canonical(array.T, spec.flattened[name]).T
            outputs[name] = array

        return keep

    def keep_input(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        outputs["input"] = inputs[0].detach().to(dtype, copy=True).cpu().numpy().transpose(0, 2, 3, 1)

    # A layer's ReLU is a part of the layer. A layer whose output is that of no module, as of F.relu, is not watched.
    with_relu = {layer.name for layer in spec.layers if isinstance(layer, Conv | Dense) and layer.relu}
    modules_of = {name: f"{name}_relu" if name in with_relu else name for name in spec.activations}
    watched = {name: modules[module] for name, module in modules_of.items() if module in modules}
    hooks = [module.register_forward_hook(hook(name)) for name, module in watched.items()]
    return outputs, [network.register_forward_pre_hook(keep_input), *hooks]


# --- Predictions: of a network that is on one device, once trained ---


def predict(experiment: Experiment, weights: Weights, device: torch.device) -> NDArray[np.floating]:
    """float (n, classes): logits for the whole test set, in its own order."""
    config, images = experiment.config, experiment.dataset.test_images
    network = make_network(experiment.network, config)
    load_weights(network, experiment.network, weights)
    network.to(device).eval()
    prepare, size = Prepare(experiment), EVAL_BATCH_SIZE
    parts = []
    with torch.inference_mode(), make_autocast(config.precision, device):
        for start in range(0, len(images), size):
            part = prepare.normalised(torch.tensor(images[start : start + size]))
            parts.append(network(part.to(device)).to(prepare.dtype).cpu())
    return torch.cat(parts).numpy()
