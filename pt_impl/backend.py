"""PyTorch, as `common.backend` sees it: it starts the replicas' processes, or joins those that torchrun has started."""

import os
import shlex
import shutil
import signal
import sys
from contextlib import suppress

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import multiprocessing

from common.backend import Backend
from common.experiment import Experiment
from common.platform.ending import as_program, comes_again, ctrl_c_waits, end_by_signal, take_signals
from common.platform.errors import RunError, UserError, describe_signal
from common.platform.launch import Launch
from common.platform.machine import cpu_name
from common.record.checkpoints import with_checkpoint
from common.record.recorder import Recorder
from common.record.run_folder import with_run_dir
from common.record.timeline import Timeline
from common.resolve import resolve_devices, resolve_settings, tuned_settings
from common.spec.options import Strategy, TrainConfig
from pt_impl import replicas
from pt_impl.inspection import predict
from pt_impl.parts import make_parts
from pt_impl.profiling import TorchProfiler
from pt_impl.train import train

GRACE_SECONDS = 10  # for the other replicas to end by themselves when one has failed


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
        config = resolve_settings(config, tuned_settings(config))
        if config.strategy == "pipeline" and config.precision == "16-mixed":
            raise UserError(
                "--precision 16-mixed: not with --strategy pipeline, whose stages share no scale of the loss"
            )
        if config.strategy in ("dp", "pipeline") and config.save_first_batch:
            raise UserError(
                f"--save-first-batch true: not with --strategy {config.strategy}, whose processes don't see all layers"
            )
        if config.compile:
            compiler = shlex.split(os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++"))[0]
            if shutil.which(compiler) is None:
                raise UserError(f"--compile true: PyTorch needs a C++ compiler, and {compiler} is not installed")
            if config.save_first_batch:
                raise UserError(
                    "--save-first-batch true: PyTorch's compiled networks don't show their layers; --compile false"
                )
        return config

    def leave(self) -> None:
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()

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
    name = "pt"
    rank: int  # of this process, once it has joined

    def join(self, experiment: Experiment, launch: Launch) -> None:
        """Makes this process the only one of the run."""
        self.rank, self.device = 0, replicas.join_replica_group(experiment.config, 0)

    def train(self, experiment: Experiment, recorder: Recorder) -> None:
        train(experiment, make_parts(experiment, self.rank, self.device, recorder), recorder)

    def run(self, config: TrainConfig) -> None:
        """One run. Under a launcher this process is one of its ranks; otherwise it starts one for each device."""
        config, launch = self.resolve(config), Launch.read()
        if not replicas.has_group(config):
            super().run(config)
        elif launch.world_size is None:
            run_ranks(config)
        else:
            assert launch.rank is not None
            timeline = Timeline.begin(launch.first_pid)
            timeline.enter("build")
            replicas.prepare_rendezvous(launch)
            self.rank, self.device = launch.rank, replicas.join_replica_group(config, launch.rank, launch.local_rank)
            timeline.enter("data")
            self.run_process(self.make_together(config), timeline, self.rank, measures=launch.local_rank == 0)

    def make_together(self, config: TrainConfig) -> Experiment:
        """Rank 0 makes the run folder and downloads data before the other ranks read. If it fails, all ranks end."""
        outcome: list[TrainConfig | UserError | None] = [None]
        experiment = None
        if self.rank == 0:
            try:
                experiment = with_run_dir(with_checkpoint(Experiment.make(config)), self.name)
                outcome = [experiment.config]
            except UserError as error:
                outcome = [error]
        dist.broadcast_object_list(outcome)
        if isinstance(outcome[0], UserError):
            if self.rank == 0:
                raise outcome[0]
            sys.exit(outcome[0].exit_status)  # rank 0 prints why
        assert outcome[0] is not None
        return experiment or with_checkpoint(Experiment.make(outcome[0]))


def run_ranks(config: TrainConfig) -> None:
    """Starts the ranks, each in a process, and waits until all have ended.

    Passes a signal on to them: they may write a checkpoint first. A second one, a second later, ends all at once.
    """
    arrived: dict[int, float] = {}  # see comes_again

    def pass_on(number: int, _: object) -> None:
        at_once = comes_again(number, arrived)
        for process in ranks.processes:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL if at_once else number)
        if at_once:
            end_by_signal(number)

    replicas.prepare_rendezvous(Launch.read())
    with ctrl_c_waits():
        ranks = multiprocessing.spawn(run_rank, (config,), nprocs=config.devices, join=False)
    take_signals(pass_on)
    try:
        while not ranks.join(grace_period=GRACE_SECONDS):
            pass
    except multiprocessing.ProcessExitedException as error:
        if error.exit_code > 0:
            sys.exit(error.exit_code)  # it has printed why
        if -error.exit_code in arrived:
            end_by_signal(-error.exit_code)
        raise RunError(f"replica {error.error_index} was ended by {describe_signal(-error.exit_code)}") from None


def run_rank(rank: int, config: TrainConfig) -> None:
    """The run of one rank, which finds itself as if torchrun had started it."""
    size = str(config.devices)
    os.environ |= {"TORCHELASTIC_RUN_ID": "alone", "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    with as_program("python -m pt_impl", shown=rank == 0):
        BACKEND.run(config)


BACKEND = PyTorch()
