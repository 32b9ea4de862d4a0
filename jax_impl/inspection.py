"""Inspection beside the training: the first batch layer by layer, and the predictions of the trained network."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from common.experiment import Experiment
from common.record.recorder import Recorder
from common.spec.batches import EVAL_BATCH_SIZE
from common.spec.layers import Conv, Dense
from common.spec.networks import NetworkSpec, Weights
from jax_impl.data import Batch, Batches, Prepare
from jax_impl.networks import CURRENT_PASS, Network, cross_entropy, make_network
from jax_impl.precision import DTYPES
from jax_impl.weights import canonical_name, load_weights, to_host

# --- First batch: for comparing implementations layer by layer ---


def save_first_batch(
    experiment: Experiment, network: Network, sharding: jax.sharding.Sharding, recorder: Recorder
) -> None:
    """Writes every layer's output and every parameter's gradient on the first batch, before any step."""
    dtype = DTYPES[experiment.config.precision]
    batch = next(Batches(experiment, sharding, trains=True).epoch(experiment.plan.epochs_done))

    @nnx.jit
    def compute(network: Network, batch: Batch) -> tuple[dict[str, jax.Array], nnx.State]:
        def loss_of(network: Network) -> tuple[jax.Array, dict[str, jax.Array]]:
            outputs: dict[str, jax.Array] = {}
            logits = network(batch.inputs, batch.weights > 0, training=True, outputs=outputs).astype(dtype)
            losses = cross_entropy(logits, batch.labels, experiment.config.label_smoothing)
            return jnp.sum(batch.weights * losses), {name: output.astype(dtype) for name, output in outputs.items()}

        gradients, outputs = nnx.grad(loss_of, has_aux=True)(network)
        return outputs, gradients

    outputs, gradients = compute(watch_activations(network, experiment.network), batch)
    outputs["input"] = batch.inputs[0] if experiment.network.drops else batch.inputs
    real = to_host(batch.weights) > 0
    recorder.save_first_batch(
        {name: to_host(output)[real] for name, output in outputs.items()},
        {canonical_name(path): to_host(leaf[...]) for path, leaf in nnx.to_flat_state(gradients)},
    )


class WatchedModule(nnx.Module):
    """A layer whose output is kept under its canonical name."""

    def __init__(self, layers: Any, name: str, with_relu: bool) -> None:
        self.layers, self.name, self.with_relu = layers, name, with_relu

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.layers(x)
        outputs = CURRENT_PASS.get().outputs
        assert outputs is not None
        outputs[self.name] = nnx.relu(x) if self.with_relu else x
        return x


def watch_activations(network: Network, spec: NetworkSpec) -> Network:
    """A copy of the network that keeps the outputs of its layers, see `NetworkPass`.

    A layer's ReLU is a part of the layer. What is no attribute of a module is not watched.
    """
    with_relu = {layer.name for layer in spec.layers if isinstance(layer, Conv | Dense) and layer.relu}

    def watch(path: tuple[Any, ...], module: Any) -> Any:
        if not isinstance(module, nnx.Module):
            return module
        for attribute, value in list(vars(module).items()):
            name = canonical_name((*path, attribute))
            if name in spec.activations and not isinstance(value, nnx.Module):  # a function, such as pooling
                setattr(module, attribute, nnx.data(WatchedModule(value, name, False)))
        name = canonical_name(path)
        return WatchedModule(module, name, name in with_relu) if name in spec.activations else module

    copy: Network = nnx.recursive_map(watch, nnx.clone(network))  # whose running statistics may change
    return copy


# --- Predictions: of a network that is on one device, once trained ---


def predict(experiment: Experiment, weights: Weights) -> NDArray[np.floating]:
    """float (n, classes): logits for the whole test set, in its own order."""
    config, images = experiment.config, experiment.dataset.test_images
    dtype, size = DTYPES[config.precision], EVAL_BATCH_SIZE
    prepare = Prepare(experiment, None)

    @nnx.jit
    def logits_of(network: Network, images: jax.Array) -> jax.Array:
        return network(prepare(images, jnp.zeros(len(images), jnp.int64))).astype(dtype)

    with jax.default_device(jax.local_devices()[0]):
        network = make_network(experiment.network, config)
        load_weights(network, weights)
        parts = (jnp.asarray(images[start : start + size]) for start in range(0, len(images), size))
        return np.concatenate([to_host(logits_of(network, part)) for part in parts])
