"""From the command line to `train`: one process and one strategy, whose replicas are the devices."""

import os
from typing import Any

import numpy as np

from common.experiment import Experiment
from common.platform.errors import UserError
from common.record.recorder import Recorder
from common.record.run_folder import with_run_dir
from common.record.timeline import Timeline
from common.spec.options import TrainConfig
from keras_impl.train import train
from tf_impl.devices import device_name, make_strategy, setup_devices, synchronize


def flatten(steps: list[tuple[Any, Any]]) -> list[tuple[float, float]]:
    """Losses and correct answers of each step, which Keras has fetched already; a call may have taken several."""
    return [pair for call in steps for pair in zip(*map(np.ravel, call), strict=True)]


def main(config: TrainConfig) -> None:
    """One run with one strategy; `config` as read from the command line."""
    timeline = Timeline.begin(os.getpid())
    timeline.enter("data")
    if config.data_on == "device":
        raise UserError("--data-on device: Keras's fit reads from a tf.data pipeline; --data-on host")
    experiment = with_run_dir(Experiment.make(setup_devices(config.replace(data_on="host"), "Keras")), "keras")
    if config.dry_run:
        return
    timeline.enter("build")
    strategy = make_strategy(experiment.config)
    with Recorder(
        "keras",
        "Keras",
        experiment,
        device_name=device_name(experiment.config),
        timeline=timeline,
        writes=True,
        fetch=flatten,
        synchronize=synchronize,
    ) as recorder:
        train(experiment, strategy, recorder)
