"""From the command line to `train`: the Trainer starts this program again for each further replica."""

import logging
import warnings

from common.platform.errors import lost_process_told
from common.platform.launch import Launch
from common.record.memory import memory_told
from common.record.recorder import Recorder
from common.record.run_folder import with_run_dir
from common.record.timeline import Timeline
from common.spec.options import TrainConfig
from pt_impl.launch import classify as classify
from ptl_impl.parts import make_parts
from ptl_impl.profiling import TorchProfiler
from ptl_impl.replicas import (
    device_name,
    fetch_steps,
    find_device,
    lost_another,
    make_experiment,
    ran_out_of_memory,
    setup_devices,
    synchronize,
    wait_for_replicas,
)
from ptl_impl.train import train


def main(config: TrainConfig) -> None:
    """One run: the Trainer starts this program again, from its first line, for each further replica."""
    launch = Launch.read()
    timeline = Timeline.begin(launch.first_pid)
    timeline.enter("data")
    quiet()
    experiment = make_experiment(setup_devices(config))
    if launch.is_first:
        experiment = with_run_dir(experiment, "ptl")
    if config.dry_run:
        return
    device = find_device(experiment.config, launch.local_rank)
    recorder = Recorder(
        "ptl",
        "Lightning",
        experiment,
        device_name=device_name(experiment.config),
        timeline=timeline,
        writes=launch.is_first,
        measures=launch.local_rank == 0,
        fetch=fetch_steps,
        synchronize=synchronize,
        profiler=TorchProfiler(),
    )
    with memory_told(recorder.config, recorder.device_name, ran_out_of_memory), lost_process_told(lost_another):
        with recorder:
            try:
                train(experiment, make_parts(experiment, device, recorder), recorder)
            except SystemExit as end:
                if isinstance(end.__context__, KeyboardInterrupt):  # Lightning turns it into exit status 1
                    raise KeyboardInterrupt from None
                raise
        wait_for_replicas()


def quiet() -> None:
    """Hides the messages that Lightning prints in every run of this program, and no other warning."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # The launcher's only message says that a replica has died.
    logging.getLogger("lightning.fabric.strategies.launchers.subprocess_script").setLevel(logging.INFO)
    # Lightning's own use of torch, not this program's.
    warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated")
    # Appears where Slurm is installed; make_environment decides who starts the replicas.
    warnings.filterwarnings("ignore", message="The `srun` command is available")
    # The data are in memory, gathered a batch at a time: worker processes would only copy them.
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
