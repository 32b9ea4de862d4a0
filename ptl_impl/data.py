"""Batches in Lightning: a LightningDataModule over pt_impl's data sets and samplers."""

import lightning.pytorch as pl

from common.experiment import Experiment
from pt_impl.data import Data, EpochSampler, Loader, load, make_data, test_data


class ExampleData(pl.LightningDataModule):
    """Each rank's shards of every batch. The files are there already: `main` has read them."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__()
        self.experiment = experiment
        # Made once, while Lightning asks for loaders anew.
        self.training: Data | None = None
        self.testing: Loader | None = None

    def train_dataloader(self) -> Loader:
        # Before every epoch (reload_dataloaders_every_n_epochs), since the last may be shorter.
        dataset, config = self.experiment.dataset, self.experiment.config
        if self.training is None:
            device = self.trainer.strategy.root_device
            self.training = make_data(dataset.train_images, dataset.train_labels, config, device)
        sampler = EpochSampler(self.experiment, self.trainer.global_rank, self.training.device)
        sampler.set_epoch(self.trainer.current_epoch)
        return load(self.training, sampler, config)

    def val_dataloader(self) -> Loader:
        if self.testing is None:
            device = self.trainer.strategy.root_device
            self.testing = test_data(self.experiment, self.trainer.global_rank, device)
        return self.testing
