"""The additions of `--mode tuned` in Lightning: the same training, but faster. train.py is complete without this file.

They are PyTorch's (pt_impl/tuning.py), in the places that Lightning's documentation has for them: the
LightningDataModule, a callback, the network and its optimizer.
"""

import lightning.pytorch as pl

from pt_impl.precision import make_autocast
from pt_impl.replicas import find_replica_device
from pt_impl.tuning import compile_ahead, make_loaders
from ptl_impl.data import ExampleDataModule


class TunedData(ExampleDataModule):
    """Batches that are gathered and normalised on the device."""

    def setup(self, stage: str) -> None:
        device = find_replica_device(self.experiment.config, self.trainer.local_rank)
        self.train_loader, self.test_loader = make_loaders(self.experiment, self.trainer.global_rank, device)


class CompileAhead(pl.Callback):
    """Compiles during start-up, for all sizes of training batches."""

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        experiment = module.experiment
        autocast = make_autocast(experiment.config.precision, module.device)
        compile_ahead(module, autocast, trainer.train_dataloader, experiment.network.image_shape)
