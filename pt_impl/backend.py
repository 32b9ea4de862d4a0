"""PyTorch, as `common.backend` sees it: it starts the replicas' processes, or joins those that torchrun has started."""

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import multiprocessing

from common.backend import Backend
from common.experiment import Experiment
from common.platform.errors import UserError, replica_ended
from common.platform.launch import Launch
from common.platform.program import as_program, ctrl_c_waits, hold_signals
from common.record.recorder import Recorder
from common.record.run_folder import with_run_dir
from common.record.timeline import Timeline
from common.spec.options import TrainConfig
from pt_impl import replicas
from pt_impl.inspection import predict
from pt_impl.parts import make_parts
from pt_impl.profiling import TorchProfiler
from pt_impl.rendezvous import prepare_rendezvous
from pt_impl.train import train

GRACE_SECONDS = 10  # for the other replicas to end by themselves when one has failed
POLL_SECONDS = 0.2


class Torch(Backend):
    """What PyTorch and Lightning have in common.

    Attributes:
      device: of this process, once it has joined.
    """

    profiler = TorchProfiler()
    device: torch.device

    def make_experiment(self, config: TrainConfig) -> Experiment:
        return replicas.make_experiment(config)

    def leave(self) -> None:
        replicas.wait_for_replicas()

    def device_name(self, config: TrainConfig) -> str:
        return replicas.device_name(config)

    def fetch(
        self, steps: list[tuple[Any, Any]], numbers: list[float]
    ) -> tuple[Sequence[tuple[float, float]], list[float]]:
        return replicas.fetch_steps(steps, numbers)

    def synchronize(self) -> None:
        replicas.synchronize()

    def ran_out_of_memory(self, error: Exception) -> bool:
        return replicas.ran_out_of_memory(error)

    def lost_another(self, error: Exception) -> bool:
        return replicas.lost_another(error)

    def classify(self, experiment: Experiment) -> NDArray[np.floating]:
        replicas.setup_process(experiment.config)
        device = replicas.find_device(experiment.config, local_rank=0)
        return predict(experiment, experiment.initial_weights, device)


class PyTorch(Torch):
    """Attributes:
    rank: of this process, once it has joined.
    starts_replicas: whether this program has started the processes of the run, and not a launcher.
    """

    name, starts_replicas = "pt", False
    rank: int

    def resolve(self, config: TrainConfig) -> TrainConfig:
        return replicas.resolve(config, self.title, replicas.STRATEGIES)

    def join(self, experiment: Experiment, launch: Launch) -> None:
        """Makes this process the only one of the run."""
        self.rank, self.device = 0, replicas.join_group(experiment.config, 0, "")

    def train(self, experiment: Experiment, recorder: Recorder) -> None:
        train(experiment, make_parts(experiment, self.rank, self.device, recorder), recorder)

    def lost_another(self, error: Exception) -> bool:
        # The process that has started the replicas says which one has ended.
        return not self.starts_replicas and replicas.lost_another(error)

    def run(self, config: TrainConfig) -> None:
        """One run. Under a launcher this process is one of the replicas; otherwise it starts them."""
        launch = Launch.read()
        timeline = Timeline.begin(launch.first_pid)
        config = self.resolve(config)
        if launch.world_size is not None:
            assert launch.rank is not None
            prepare_rendezvous(launch)
            self.run_replica(launch.rank, config, "env://", timeline)
            return
        timeline.enter("data")
        # Reports mistakes and downloads data before workers start.
        experiment = with_run_dir(self.make_experiment(config), self.name)
        if config.dry_run:
            return
        config = experiment.config
        if not replicas.has_group(config):
            timeline.enter("build")
            self.join(experiment, launch)
            self.run_process(experiment, timeline, writes=True, measures=True)
            return
        timeline.enter("imports")  # each worker's own imports
        self.starts_replicas = True
        with tempfile.TemporaryDirectory() as folder:
            init_method = f"file://{Path(folder) / 'rendezvous'}"
            with ctrl_c_waits():
                processes = multiprocessing.spawn(
                    self.run_replica, (config, init_method, timeline), nprocs=config.devices, join=False
                )
            try:
                wait_for(processes, config)
            except multiprocessing.ProcessExitedException as error:
                if error.signal_name or error.exit_code > 128:
                    raise replica_ended(error.error_index, error.exit_code) from None
                sys.exit(error.exit_code)  # it has printed why

    def run_replica(self, rank: int, config: TrainConfig, init_method: str, timeline: Timeline) -> None:
        """The whole run of one replica, in a process of its own."""
        with as_program("python -m pt_impl", shown=rank == 0):
            timeline.enter("build")
            local_rank = rank if self.starts_replicas else Launch.read().local_rank
            self.rank, self.device = rank, replicas.join_group(config, rank, init_method, local_rank)
            timeline.enter("data")
            experiment = self.make_experiment(config) if self.starts_replicas else self.make_together(config)
            self.run_process(experiment, timeline, writes=rank == 0, measures=local_rank == 0)
            replicas.leave_group()

    def make_together(self, config: TrainConfig) -> Experiment:
        """Rank 0 makes the run folder and downloads data before the other ranks read. If it fails, all ranks end."""
        outcome: list[TrainConfig | UserError | None] = [None]
        experiment = None
        if self.rank == 0:
            try:
                experiment = with_run_dir(self.make_experiment(config), self.name)
                outcome = [experiment.config]
            except UserError as error:
                outcome = [error]
        if dist.is_initialized():
            dist.broadcast_object_list(outcome)
        if isinstance(outcome[0], UserError):
            if self.rank == 0:
                raise outcome[0]
            sys.exit(outcome[0].exit_status)  # rank 0 prints why
        assert outcome[0] is not None
        return experiment or self.make_experiment(outcome[0])


def wait_for(processes: multiprocessing.ProcessContext, config: TrainConfig) -> None:
    """Returns when all replicas have ended. With checkpoints, passes a signal on to them, so that they make one."""
    if config.checkpoint_every is None:
        while not processes.join(grace_period=GRACE_SECONDS):
            pass
        return
    with hold_signals() as held:
        told = False
        try:
            while not processes.join(timeout=POLL_SECONDS, grace_period=GRACE_SECONDS):
                if held.number is not None and not told:
                    told = True
                    for process in processes.processes:
                        os.kill(process.pid, held.number)
        except multiprocessing.ProcessExitedException as error:
            if held.number is None or error.exit_code != 128 + held.number:
                raise
            held.end()  # there was nothing yet to save in a checkpoint


BACKEND = PyTorch()
