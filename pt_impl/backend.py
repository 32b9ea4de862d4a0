"""PyTorch, as `common.backend` sees it: it starts the replicas' processes, or joins those that torchrun has started."""

import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import multiprocessing

from common.backend import Backend
from common.experiment import Experiment
from common.platform.ending import as_program, ctrl_c_waits, end_by_signal, hold_signals
from common.platform.errors import UserError, replica_ended_error
from common.platform.launch import Launch
from common.platform.machine import cpu_name
from common.record.checkpoints import with_checkpoint
from common.record.recorder import Recorder
from common.record.run_folder import with_run_dir
from common.record.timeline import Timeline
from common.resolve import Settings, resolve_devices, resolve_settings
from common.spec.options import Strategy, TrainConfig
from pt_impl import replicas
from pt_impl.inspection import predict
from pt_impl.parts import make_parts
from pt_impl.precision import tuned_settings
from pt_impl.profiling import TorchProfiler
from pt_impl.rendezvous import prepare_rendezvous
from pt_impl.train import train

GRACE_SECONDS = 10  # for the other replicas to end by themselves when one has failed
POLL_SECONDS = 0.2


class Torch(Backend):
    """What PyTorch and Lightning have in common.

    Attributes:
      strategies: values of `--strategy`; for several devices, "auto" means the first of them.
      device: of this process, once it has joined.
    """

    profiler = TorchProfiler()
    strategies: tuple[Strategy, ...] = replicas.STRATEGIES
    device: torch.device

    def resolve(self, config: TrainConfig) -> TrainConfig:
        config = resolve_devices(
            config, self.title, torch.cuda.device_count(), Launch.read(), self.strategies, torch.version.cuda
        )
        config = resolve_settings(config, tuned_settings(config) if config.mode == "tuned" else Settings())
        check_compiler(config)
        if config.strategy == "pipeline" and config.precision == "16-mixed":
            raise UserError(
                "--precision 16-mixed: not with --strategy pipeline, whose stages share no scale of the loss"
            )
        if config.strategy in ("dp", "pipeline") and config.save_first_batch:
            raise UserError(
                f"--save-first-batch true: not with --strategy {config.strategy}, whose processes don't see all layers"
            )
        return config

    def make_experiment(self, config: TrainConfig) -> Experiment:
        """Like `Backend.make_experiment`. Raises UserError, too, if torch.compile would fail.

        It fails with most networks if a replica has no examples.
        """
        experiment = Experiment.make(config)
        starts, stops, _ = experiment.plan.shards(1, config.num_shards)[-1].T
        if config.compile and config.model not in ("cnn", "lenet") and (starts == stops).any():
            raise UserError(
                f"--compile true: a last batch of {stops[-1] - starts[0]} leaves some of {config.num_shards} replicas"
                f" without examples, for which PyTorch can't compile {config.model}; another --batch-size, or"
                " --compile false"
            )
        return with_checkpoint(experiment)

    def leave(self) -> None:
        if dist.is_initialized():
            dist.barrier()

    def device_name(self, config: TrainConfig) -> str:
        """The processor's or the first GPU's name, or both where a pipeline has both."""
        kinds = dict.fromkeys(config.stages_on)
        return " and ".join(cpu_name() if kind == "cpu" else torch.cuda.get_device_name(0) for kind in kinds)

    def fetch(
        self, steps: list[tuple[torch.Tensor, torch.Tensor]], numbers: list[float]
    ) -> tuple[list[tuple[float, float]], list[float]]:
        """All are summed over the replicas in one all-reduce."""
        losses, correct = (torch.stack(column).double() for column in zip(*steps, strict=True))
        sums = replicas.sum_over_replicas(torch.cat([losses, correct, losses.new_tensor(numbers)])).tolist()
        count = len(steps)
        return list(zip(sums[:count], sums[count : 2 * count], strict=True)), sums[2 * count :]

    def synchronize(self) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def ran_out_of_memory(self, error: Exception) -> bool:
        """On the CPU torch has no type for it."""
        if isinstance(error.__cause__, Exception) and self.ran_out_of_memory(error.__cause__):  # in a pipeline's stage
            return True
        message = str(error)
        on_cpu = isinstance(error, RuntimeError) and (
            "can't allocate memory" in message or "could not create a memory" in message or "std::bad_alloc" in message
        )
        return isinstance(error, torch.OutOfMemoryError | MemoryError) or on_cpu

    def lost_another(self, error: Exception) -> bool:
        """gloo has no type for it."""
        message = str(error)
        by_gloo = isinstance(error, RuntimeError) and ("by peer" in message or "Broken pipe" in message)
        return isinstance(error, dist.DistError) or by_gloo

    def classify(self, experiment: Experiment) -> NDArray[np.floating]:
        replicas.setup_replica_process(experiment.config)
        device = replicas.find_replica_device(experiment.config, local_rank=0)
        return predict(experiment, experiment.initial_weights, device)


class PyTorch(Torch):
    """Attributes:
    rank: of this process, once it has joined.
    starts_replicas: whether this program has started the processes of the run, and not a launcher.
    """

    name, starts_replicas = "pt", False
    rank: int

    def join(self, experiment: Experiment, launch: Launch) -> None:
        """Makes this process the only one of the run."""
        self.rank, self.device = 0, replicas.join_replica_group(experiment.config, 0, "")

    def train(self, experiment: Experiment, recorder: Recorder) -> None:
        train(experiment, make_parts(experiment, self.rank, self.device, recorder), recorder)

    def lost_another(self, error: Exception) -> bool:
        # The process that has started the replicas says which one has ended.
        return not self.starts_replicas and super().lost_another(error)

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
            self.run_process(experiment, timeline, rank=0, measures=True)
            return
        timeline.enter("imports")  # each worker's own imports
        self.starts_replicas = True
        # Not removed earlier than the family's temporary folder: replicas that leave the group still look for the file.
        init_method = f"file://{Path(tempfile.mkdtemp()) / 'rendezvous'}"
        with ctrl_c_waits():
            processes = multiprocessing.spawn(
                self.run_replica, (config, init_method, timeline), nprocs=config.devices, join=False
            )
        try:
            wait_for(processes, config)
        except multiprocessing.ProcessExitedException as error:
            if error.signal_name or error.exit_code > 128:
                raise replica_ended_error(error.error_index, error.exit_code) from None
            sys.exit(error.exit_code)  # it has printed why

    def run_replica(self, rank: int, config: TrainConfig, init_method: str, timeline: Timeline) -> None:
        """The whole run of one replica, in a process of its own."""
        with as_program("python -m pt_impl", shown=rank == 0):
            timeline.enter("build")
            local_rank = rank if self.starts_replicas else Launch.read().local_rank
            self.rank, self.device = rank, replicas.join_replica_group(config, rank, init_method, local_rank)
            timeline.enter("data")
            experiment = self.make_experiment(config) if self.starts_replicas else self.make_together(config)
            self.run_process(experiment, timeline, rank=rank, measures=local_rank == 0)
            if dist.is_initialized():
                dist.destroy_process_group()

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


def check_compiler(config: TrainConfig) -> None:
    """Raises UserError if torch.compile would find no C++ compiler, or if it is combined with --save-first-batch."""
    if not config.compile:
        return
    compiler = shlex.split(os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++"))[0]
    if shutil.which(compiler) is None:
        raise UserError(f"--compile true: PyTorch needs a C++ compiler, and {compiler} is not installed")
    if config.save_first_batch:
        raise UserError("--save-first-batch true: PyTorch's compiled networks don't show their layers; --compile false")


def wait_for(processes: multiprocessing.ProcessContext, config: TrainConfig) -> None:
    """Returns when all replicas have ended. With checkpoints, passes a signal on to them, so that they make one."""
    if config.checkpoint_every is None:
        while not processes.join(grace_period=GRACE_SECONDS):
            pass
        return
    with hold_signals() as held:
        has_warned = False
        try:
            while not processes.join(timeout=POLL_SECONDS, grace_period=GRACE_SECONDS):
                if held.number is not None and not has_warned:
                    has_warned = True
                    for process in processes.processes:
                        os.kill(process.pid, held.number)
        except multiprocessing.ProcessExitedException as error:
            if held.number is None or error.exit_code != 128 + held.number:
                raise
            end_by_signal(held.number)  # there was nothing yet to save in a checkpoint


BACKEND = PyTorch()
