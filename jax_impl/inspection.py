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
from common.spec.networks import Weights
from jax_impl.data import Batch, Prepare, TrainBatches
from jax_impl.networks import Network, cross_entropy, make_network
from jax_impl.precision import DTYPES
from jax_impl.weights import canonical_name, load_weights, to_host

# --- First batch: for comparing implementations layer by layer ---


def save_first_batch(
    experiment: Experiment, network: Network, sharding: jax.sharding.Sharding, recorder: Recorder
) -> None:
    """Writes every layer's output and every parameter's gradient on the first batch, before any step."""
    dtype = DTYPES[experiment.config.precision]
    batch = next(TrainBatches(experiment, sharding).epoch(experiment.plan.epochs_done))

    @nnx.jit
    def compute(network: Network, batch: Batch) -> tuple[dict[str, jax.Array], nnx.State]:
        def loss_of(network: Network) -> tuple[jax.Array, dict[str, jax.Array]]:
            outputs: dict[str, jax.Array] = {}
            logits = network(batch.inputs, batch.weights > 0, training=True, outputs=outputs).astype(dtype)
            losses = cross_entropy(logits, batch.labels, experiment.config.label_smoothing)
            return jnp.sum(batch.weights * losses), {name: output.astype(dtype) for name, output in outputs.items()}

        gradients, outputs = nnx.grad(loss_of, has_aux=True)(network)
        return outputs, gradients

    outputs, gradients = compute(nnx.clone(network), batch)  # a copy, whose running statistics may change
    # Layers that the specification does not name, such as a ReLU, are left out.
    outputs = {name: output for name, output in outputs.items() if name in experiment.network.activations}
    outputs["input"] = batch.inputs[0] if experiment.network.drops else batch.inputs
    real = to_host(batch.weights) > 0
    named: dict[str, Any] = {canonical_name(path): leaf[...] for path, leaf in nnx.to_flat_state(gradients)}
    recorder.save_first_batch(
        {name: to_host(output)[real] for name, output in outputs.items()},
        {name: to_host(gradient) for name, gradient in named.items()},
    )


# --- Predictions: of a network that is on one device, once trained ---


def predict(experiment: Experiment, weights: Weights) -> NDArray[np.floating]:
    """float (n, classes): logits for the whole test set, in its own order."""
    config, images = experiment.config, experiment.dataset.test_images
    dtype = DTYPES[config.precision]
    size = min(EVAL_BATCH_SIZE, len(images))
    prepare = Prepare(experiment, None)

    @nnx.jit
    def logits_of(network: Network, images: jax.Array) -> jax.Array:
        return network(prepare(images, jnp.zeros(len(images), jnp.int64))).astype(dtype)

    with jax.default_device(jax.local_devices()[0]):
        network = make_network(experiment.network, config)
        load_weights(network, weights)
        parts = []
        for start in range(0, len(images), size):
            part = np.asarray(images[start : start + size])
            # All parts have the same size, so the function is compiled once.
            padded = np.concatenate([part, np.zeros((size - len(part), *part.shape[1:]), part.dtype)])
            parts.append(to_host(logits_of(network, jnp.asarray(padded)))[: len(part)])
    return np.concatenate(parts)
