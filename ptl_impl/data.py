"""Batches in Lightning: a LightningDataModule over pt_impl's loaders."""

from collections.abc import Callable

import lightning.pytorch as pl
from torch.utils.data import DataLoader

from common.experiment import Experiment
from pt_impl.data import Batch

Loaders = tuple[DataLoader[Batch], DataLoader[Batch]]  # of the training and of the test batches of one rank


class ExampleDataModule(pl.LightningDataModule):
    """Each rank's shards of every batch. The files exist already: `main` has read them."""

    def __init__(self, experiment: Experiment, make_loaders: Callable[[Experiment, int], Loaders]) -> None:
        """`make_loaders`: pt_impl's function of this name, in one of its modes."""
        super().__init__()
        self.experiment, self.make_loaders = experiment, make_loaders

    def setup(self, stage: str) -> None:
        self.train_loader, self.test_loader = self.make_loaders(self.experiment, self.trainer.global_rank)

    def train_dataloader(self) -> DataLoader[Batch]:
        # The Trainer also sets the epoch, but before that it reads the length of a loader that it has just requested.
        self.train_loader.sampler.set_epoch(self.trainer.current_epoch)
        return self.train_loader

    def val_dataloader(self) -> DataLoader[Batch]:
        return self.test_loader
