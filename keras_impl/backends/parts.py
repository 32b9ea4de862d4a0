"""The parts of a training in Keras on another backend than TensorFlow."""

import functools
from typing import Any

import keras
import numpy as np

from common.experiment import Experiment
from common.spec.batches import epoch_order
from common.spec.randomness import positions, visits
from keras_impl.backends.inspection import prepare
from keras_impl.backends.optimizer import Optimizer
from keras_impl.backends.state import get_state, set_state
from keras_impl.backends.train import Arrays, Parts
from keras_impl.backends.tutorial import compile_options
from tf_impl.networks import make_network
from tf_impl.weights import load_weights


def make_parts(experiment: Experiment) -> Parts:
    """The parts of the only process."""
    config, dataset, plan = experiment.config, experiment.dataset, experiment.plan
    network = make_network(experiment.network, config)
    load_weights(network, experiment.first_weights)
    optimizer = Optimizer(experiment.update_rule)
    optimizer.build(network.trainable_variables)
    if experiment.state:
        set_state(experiment, network, optimizer)

    def targets(labels: Any) -> Any:
        return np.eye(experiment.network.num_classes, dtype="float32")[labels] if config.label_smoothing else labels

    def train_arrays(epoch: int) -> Arrays:
        whole = visits(epoch + 1, epoch_order(config.seed, epoch + 1, plan.train_size))
        # Not all batches: a training may begin within an epoch, and --max-steps leaves out batches before the last one.
        order = np.concatenate([whole[start:stop] for start, stop, _ in plan.shards(epoch + 1, 1)[:, 0]])
        images, labels = dataset.train_images[positions(order)], dataset.train_labels[positions(order)]
        return prepare(experiment, images, order, experiment.augmentation), targets(labels)

    test_inputs = prepare(experiment, dataset.test_images, np.arange(len(dataset.test_images)))
    # On JAX the steps leave their arrays in fit's own state until the end of an epoch.
    sync = network.jax_state_sync if keras.backend.backend() == "jax" else lambda: None
    return Parts(
        network,
        optimizer,
        compile_options(experiment),
        {} if config.mode == "tutorial" else {"verbose": 0},
        train_arrays,
        (test_inputs, targets(dataset.test_labels)),
        functools.partial(get_state, experiment, network, optimizer, sync),
    )
