"""From the command line to `train`: starts PyTorch's processes, or joins those that torchrun has started."""

import os
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from torch import multiprocessing

from common.data.datasets import Dataset
from common.experiment import Experiment
from common.platform.errors import UserError, lost_process_told, replica_ended
from common.platform.launch import Launch
from common.platform.program import as_program, ctrl_c_waits, hold_signals
from common.record.memory import memory_told
from common.record.recorder import Recorder
from common.record.run_folder import with_run_dir
from common.record.timeline import Timeline
from common.spec.options import TrainConfig
from pt_impl.inspection import predict
from pt_impl.parts import make_parts
from pt_impl.profiling import TorchProfiler
from pt_impl.rendezvous import prepare_rendezvous
from pt_impl.replicas import (
    device_name,
    fetch_steps,
    find_device,
    has_group,
    join_group,
    leave_group,
    lost_another,
    make_experiment,
    ran_out_of_memory,
    setup_devices,
    setup_process,
    synchronize,
    wait_for_replicas,
)
from pt_impl.train import train

GRACE_SECONDS = 10  # for the other replicas to end by themselves when one has failed
POLL_SECONDS = 0.2


def main(config: TrainConfig) -> None:
    """One run. Under a launcher this process is one of the replicas; otherwise it starts them."""
    launch = Launch.read()
    timeline = Timeline.begin(launch.first_pid)
    config = setup_devices(config)
    if launch.world_size is not None:
        assert launch.rank is not None
        prepare_rendezvous(launch)
        run_replica(launch.rank, config, "env://", timeline)
        return
    timeline.enter("data")
    experiment = with_run_dir(make_experiment(config), "pt")  # reports mistakes and downloads data before workers start
    if config.dry_run:
        return
    config = experiment.config
    if not has_group(config):
        run_replica(0, config, "", timeline, experiment)
        return
    timeline.enter("imports")  # each worker's own imports
    with tempfile.TemporaryDirectory() as folder:
        init_method = f"file://{Path(folder) / 'rendezvous'}"
        with ctrl_c_waits():
            replicas = multiprocessing.spawn(
                run_replica, (config, init_method, timeline), nprocs=config.devices, join=False
            )
        try:
            wait_for(replicas, config)
        except multiprocessing.ProcessExitedException as error:
            if error.signal_name or error.exit_code > 128:
                raise replica_ended(error.error_index, error.exit_code) from None
            sys.exit(error.exit_code)  # it has printed why


def wait_for(replicas: multiprocessing.ProcessContext, config: TrainConfig) -> None:
    """Returns when all replicas have ended. With checkpoints, passes a signal on to them, so that they make one."""
    if config.checkpoint_every is None:
        while not replicas.join(grace_period=GRACE_SECONDS):
            pass
        return
    with hold_signals() as held:
        told = False
        try:
            while not replicas.join(timeout=POLL_SECONDS, grace_period=GRACE_SECONDS):
                if held.number is not None and not told:
                    told = True
                    for process in replicas.processes:
                        os.kill(process.pid, held.number)
        except multiprocessing.ProcessExitedException as error:
            if held.number is None or error.exit_code != 128 + held.number:
                raise
            held.end()  # there was nothing yet to save in a checkpoint


def run_replica(
    rank: int, config: TrainConfig, init_method: str, timeline: Timeline, experiment: Experiment | None = None
) -> None:
    """The whole run of one replica, in a process of its own if there are several."""
    with as_program("python -m pt_impl", shown=rank == 0):
        timeline.enter("build")
        launch = Launch.read()
        launched = launch.world_size is not None
        device = join_group(config, rank, init_method, launch.local_rank if launched else None)
        timeline.enter("data")
        if launched:
            experiment = prepare_together(config, rank)
        experiment = experiment or make_experiment(config)
        recorder = Recorder(
            "pt",
            "PyTorch",
            experiment,
            device_name=device_name(config),
            timeline=timeline,
            writes=rank == 0,
            measures=launch.local_rank == 0 if launched else rank == 0,
            fetch=fetch_steps,
            synchronize=synchronize,
            profiler=TorchProfiler(),
        )
        # If this program has started the replicas itself, the process that did so reports which one has ended.
        told = lost_process_told(lost_another) if launched else nullcontext()
        with memory_told(recorder.config, recorder.device_name, ran_out_of_memory), told:
            with recorder:
                train(experiment, make_parts(experiment, rank, device, recorder), recorder)
            wait_for_replicas()
        leave_group()


def prepare_together(config: TrainConfig, rank: int) -> Experiment:
    """Rank 0 makes the run folder and downloads data before the other ranks read. If it fails, all ranks end."""
    outcome: list[TrainConfig | UserError | None] = [None]
    experiment = None
    if rank == 0:
        try:
            experiment = with_run_dir(make_experiment(config), "pt")
            outcome = [experiment.config]
        except UserError as error:
            outcome = [error]
    if dist.is_initialized():
        dist.broadcast_object_list(outcome)
    if isinstance(outcome[0], UserError):
        if rank == 0:
            raise outcome[0]
        sys.exit(outcome[0].exit_status)  # rank 0 prints why
    assert outcome[0] is not None
    return experiment or make_experiment(outcome[0])


def classify(config: TrainConfig, dataset: Dataset) -> NDArray[np.floating]:
    """float (n, classes): logits of a trained network for the test images of `dataset`, computed on one device."""
    experiment = Experiment.make(setup_devices(config), dataset)
    config = experiment.config
    setup_process(config)
    device = find_device(config, local_rank=0)
    with memory_told(config, device_name(config), ran_out_of_memory, trains=False):
        return predict(experiment, experiment.initial_weights, device)
