"""From the command line to `train`: one process and one strategy, with a replica on each device."""

import functools

import numpy as np
from numpy.typing import NDArray

from common.data.datasets import Dataset
from common.experiment import Experiment
from common.platform.errors import lost_process_told
from common.platform.launch import Launch
from common.record.checkpoints import with_checkpoint
from common.record.memory import memory_told
from common.record.recorder import Recorder
from common.record.run_folder import with_run_dir
from common.record.timeline import Timeline
from common.spec.options import TrainConfig
from tf_impl.inspection import predict
from tf_impl.networks import make_network
from tf_impl.parallel import make_strategy
from tf_impl.parts import make_parts
from tf_impl.profiling import TensorFlowProfiler
from tf_impl.replicas import (
    check_shards,
    device_name,
    fetch_steps,
    lost_another,
    ran_out_of_memory,
    setup_devices,
    synchronize,
    wait_for_processes,
)
from tf_impl.train import train
from tf_impl.weights import load_weights


def main(config: TrainConfig) -> None:
    """One run: in a single process with one strategy, or as one of the processes that a launcher has started."""
    launch = Launch.read()
    timeline = Timeline.begin(launch.first_pid)
    timeline.enter("data")
    experiment = with_checkpoint(Experiment.make(setup_devices(config)))
    timeline.enter("build")
    strategy = make_strategy(experiment.config)
    check_shards(experiment)
    if launch.is_first:
        experiment = with_run_dir(experiment, "tf")
    if config.dry_run:
        return
    recorder = Recorder(
        "tf",
        "TensorFlow",
        experiment,
        device_name=device_name(experiment.config),
        timeline=timeline,
        writes=launch.is_first,
        measures=launch.local_rank == 0,
        fetch=functools.partial(fetch_steps, strategy=strategy),
        synchronize=functools.partial(synchronize, strategy),
        profiler=TensorFlowProfiler(),
    )
    with memory_told(recorder.config, recorder.device_name, ran_out_of_memory), lost_process_told(lost_another):
        with recorder:
            train(experiment, make_parts(experiment, strategy, recorder), recorder)
        wait_for_processes(strategy)


def classify(config: TrainConfig, dataset: Dataset) -> NDArray[np.floating]:
    """float (n, classes): logits of a trained network for the test images of `dataset`, computed on one device."""
    experiment = Experiment.make(setup_devices(config), dataset)
    config = experiment.config
    make_strategy(config)
    with memory_told(config, device_name(config), ran_out_of_memory, trains=False):
        network = make_network(experiment.network, config)
        load_weights(network, experiment.initial_weights)
        return predict(experiment, network)
