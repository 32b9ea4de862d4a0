"""Inspection beside the training: as in TensorFlow, applied to the network inside the model."""

import keras
import tensorflow as tf

from common.experiment import Experiment
from common.record.recorder import Recorder
from tf_impl import inspection as tf_inspection
from tf_impl.data import make_dataset, make_shards
from tf_impl.inspection import predict as predict


def save_first_batch(
    experiment: Experiment, strategy: tf.distribute.Strategy, network: keras.Model, recorder: Recorder
) -> None:
    """Writes every layer's output and every parameter's gradient on the first batch, before any step."""
    shards, _ = make_shards(experiment, strategy.num_replicas_in_sync)
    batch = next(iter(make_dataset(strategy, shards)))
    tf_inspection.save_first_batch(experiment, strategy, network, batch, recorder)
