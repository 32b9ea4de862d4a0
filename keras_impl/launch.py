"""From the command line to `train`: one process and one strategy, with a replica on each device."""

from common.experiment import Experiment
from common.platform.launch import Launch
from common.record.checkpoints import with_checkpoint
from common.record.memory import memory_told
from common.record.recorder import Recorder
from common.record.run_folder import with_run_dir
from common.record.timeline import Timeline
from common.spec.options import TrainConfig
from keras_impl.parallel import make_strategy
from keras_impl.parts import make_parts
from keras_impl.profiling import TensorFlowProfiler
from keras_impl.replicas import check_shards, device_name, fetch_steps, ran_out_of_memory, setup_devices, synchronize
from keras_impl.train import train
from tf_impl.launch import classify as classify


def main(config: TrainConfig) -> None:
    """One run with one strategy; `config` as read from the command line."""
    timeline = Timeline.begin(Launch.read().first_pid)
    timeline.enter("data")
    experiment = with_checkpoint(Experiment.make(setup_devices(config)))
    timeline.enter("build")
    strategy = make_strategy(experiment.config)
    check_shards(experiment)
    experiment = with_run_dir(experiment, "keras")
    if config.dry_run:
        return
    recorder = Recorder(
        "keras",
        "Keras",
        experiment,
        device_name=device_name(experiment.config),
        timeline=timeline,
        writes=True,
        fetch=fetch_steps,
        synchronize=synchronize,
        profiler=TensorFlowProfiler(),
    )
    with memory_told(recorder.config, recorder.device_name, ran_out_of_memory), recorder:
        train(experiment, make_parts(experiment, strategy, recorder), recorder)
