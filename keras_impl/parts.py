"""The parts of a training in Keras. Mode and resuming are decided here, before `train`."""

import functools
from typing import Any

import keras
import tensorflow as tf

from common.experiment import Experiment
from common.record.recorder import Recorder
from keras_impl.data import make_dataset
from keras_impl.train import Classifier, Parts, Recording
from tf_impl.data import make_shards
from tf_impl.inspection import save_first_batch
from tf_impl.networks import make_network
from tf_impl.optimizer import make_optimizer
from tf_impl.replicas import sum_over_replicas
from tf_impl.state import get_state, set_state
from tf_impl.weights import load_weights


def make_parts(experiment: Experiment, strategy: tf.distribute.Strategy, recorder: Recorder) -> Parts:
    """The parts of a training with this strategy."""
    config = experiment.config
    with strategy.scope():
        network = make_network(experiment.network, config, sum_over_replicas)
        load_weights(network, experiment.first_weights)
        optimizer = make_optimizer(network, experiment.update_rule, config)
    if experiment.state:
        set_state(experiment, network, optimizer)
    train_shards, test_shards = make_shards(experiment, num_replicas=1)  # whole batches, which fit splits
    state_after = functools.partial(get_state, experiment, network, optimizer)
    # The model is made outside the scope, unlike in Keras's guide. To build a model made inside, fit would add up the
    # replicas' shards of the first batch, which fails if they differ in size. The variables are the network's, made
    # inside.
    make, model, recording = make_dataset, Classifier(network, experiment), Recording
    compile_options: dict[str, Any] = {"jit_compile": False}
    fit_options = {"verbose": 0}  # the recorder shows progress
    if config.mode == "tutorial":
        from keras_impl import tutorial_data
        from keras_impl.tutorial import compile_options as make_compile_options

        model = keras.Model(network.inputs, network.outputs)
        make, recording = tutorial_data.make_dataset, tutorial_data.TutorialRecording
        with strategy.scope():
            compile_options = make_compile_options(experiment)
        fit_options = {}
    elif config.mode == "tuned":
        from keras_impl import tuning

        make, model, recording = tuning.make_dataset, tuning.TunedClassifier(network, experiment), tuning.TunedRecording
        compile_options["steps_per_execution"] = tuning.steps_per_execution(experiment.plan)
    if config.save_first_batch:
        save_first_batch(experiment, strategy, network, recorder)

    def train_batches(epoch: int) -> tf.data.Dataset:
        train_shards.set_epoch(epoch)
        return make(experiment, train_shards)

    return Parts(
        strategy,
        network,
        optimizer,
        model,
        compile_options,
        fit_options,
        train_batches,
        make(experiment, test_shards),
        recording(recorder, network, train_shards, state_after),
    )
