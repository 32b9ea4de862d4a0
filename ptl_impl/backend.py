"""Lightning, as `common.backend` sees it: PyTorch, whose processes the Trainer starts."""

import logging
import warnings

from common.experiment import Experiment
from common.platform.errors import UserError
from common.platform.launch import Launch
from common.record.recorder import Recorder
from common.spec.options import TrainConfig
from pt_impl import replicas
from pt_impl.backend import Torch
from ptl_impl.parallel import STRATEGIES
from ptl_impl.parts import make_parts
from ptl_impl.train import train


class Lightning(Torch):
    """The Trainer starts this program again, from its first line, for each further replica."""

    name, strategies = "ptl", STRATEGIES

    def resolve(self, config: TrainConfig) -> TrainConfig:
        quiet_lightning()
        config = super().resolve(config)
        if config.strategy == "fsdp" and config.accumulate_grad_batches > 1 and config.save_first_batch:
            raise UserError(
                "--save-first-batch true: not with --strategy fsdp and --accumulate-grad-batches in Lightning"
            )
        return config

    def join(self, experiment: Experiment, launch: Launch) -> None:
        replicas.setup_replica_process(experiment.config)
        self.device = replicas.find_replica_device(experiment.config, launch.local_rank)

    def train(self, experiment: Experiment, recorder: Recorder) -> None:
        train(experiment, make_parts(experiment, self.device, recorder), recorder)


def quiet_lightning() -> None:
    """Hides the messages that Lightning prints in every run of this program, and no other warning."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # The launcher's only message says that a replica has died.
    logging.getLogger("lightning.fabric.strategies.launchers.subprocess_script").setLevel(logging.INFO)
    # Lightning's own use of torch, not this program's.
    warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated")
    # Appears where Slurm is installed; make_replica_environment decides who starts the replicas.
    warnings.filterwarnings("ignore", message="The `srun` command is available")
    # The data are in memory, gathered a batch at a time: worker processes would only copy them.
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")


BACKEND = Lightning()
