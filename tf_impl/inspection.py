"""Inspection beside the training: the first batch layer by layer, and the predictions of the trained network."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.experiment import Experiment
from common.record.recorder import Recorder
from common.spec.batches import EVAL_BATCH_SIZE
from tf_impl.data import Shards, make_dataset, make_shards
from tf_impl.networks import DTYPES, cross_entropy
from tf_impl.weights import canonical_name, named_parameters, statistics_kept

SUM = tf.distribute.ReduceOp.SUM

# --- First batch: for comparing implementations layer by layer ---


def save_first_batch(
    experiment: Experiment, strategy: tf.distribute.Strategy, network: keras.Model, recorder: Recorder
) -> None:
    """Writes every layer's output and every parameter's gradient on the first batch, before any step."""
    dtype = DTYPES[experiment.config.precision]
    shards, _ = make_shards(experiment, strategy.num_replicas_in_sync)
    batch = next(iter(make_dataset(strategy, shards)))
    # Layers that the specification does not name, such as a ReLU, are left out. Keras gives them names of its own.
    names = {layer: canonical_name(layer) for layer in network.layers}
    named = {name: layer.output for layer, name in names.items() if name in experiment.network.activations}
    layers = keras.Model(network.inputs, named)

    def replica_step(inputs: Any, labels: tf.Tensor, count: tf.Tensor) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            outputs = {name: tf.cast(output, dtype) for name, output in layers(inputs, training=True).items()}
            logits = outputs[names[network.layers[-1]]]
            losses = cross_entropy(labels, logits, experiment.config.label_smoothing)
            loss = tf.reduce_sum(losses) / tf.cast(count, dtype)
        outputs["input"] = tf.cast(inputs[0] if experiment.network.drops else inputs, dtype)
        return outputs, tape.gradient(loss, network.trainable_variables)

    with statistics_kept(network):
        outputs, gradients = strategy.run(tf.function(replica_step), args=batch)

    @tf.function
    def gathered() -> dict[str, tf.Tensor]:
        return {name: strategy.gather(value, axis=0) for name, value in outputs.items()}

    recorder.save_first_batch(
        {name: value.numpy() for name, value in gathered().items()},
        {
            name: strategy.reduce(SUM, gradient, axis=None).numpy()
            for name, gradient in zip(named_parameters(network), gradients, strict=True)
        },
    )


# --- Predictions: of one replica alone, once trained ---


def predict(experiment: Experiment, network: keras.Model) -> NDArray[np.floating]:
    """float (n, classes): logits for the whole test set, in its own order."""
    config, images = experiment.config, experiment.dataset.test_images
    parts = (images[start : start + EVAL_BATCH_SIZE] for start in range(0, len(images), EVAL_BATCH_SIZE))
    test_shards = Shards(experiment, num_replicas=1, trains=False)
    inputs = (test_shards.prepare(part, tf.zeros(len(part), tf.int64)) for part in parts)
    return np.concatenate([tf.cast(network(batch), DTYPES[config.precision]).numpy() for batch in inputs])
