"""Batches in Lightning: a LightningDataModule over pt_impl's data set and samplers."""

import lightning.pytorch as pl
from torch.utils.data import DataLoader

from common.experiment import Experiment
from pt_impl.data import Batch, EpochSampler, Examples, load, test_data


class ExampleData(pl.LightningDataModule):
    """Each rank's shards of every batch. The files are there already: `main` has read them."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__()
        self.experiment = experiment
        # Made once, while Lightning asks for loaders anew.
        self.examples = Examples(experiment.dataset.train_images, experiment.dataset.train_labels)
        self.testing: DataLoader[Batch] | None = None

    def train_dataloader(self) -> DataLoader[Batch]:
        # Before every epoch (reload_dataloaders_every_n_epochs), since the last may be shorter.
        sampler = EpochSampler(self.experiment, self.trainer.global_rank)
        sampler.set_epoch(self.trainer.current_epoch)
        return load(self.examples, sampler, self.experiment)

    def val_dataloader(self) -> DataLoader[Batch]:
        if self.testing is None:
            self.testing = test_data(self.experiment, self.trainer.global_rank)
        return self.testing
