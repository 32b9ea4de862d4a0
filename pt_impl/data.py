"""Batches in PyTorch: a sampler that gives each rank its shard of each batch, a data set that gathers it."""

import itertools
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from common.batches import epoch_order, shards
from common.experiment import Experiment
from common.formats import Images, Labels

# A batch: images uint8 (n, C, H, W), labels int64 (n,), and the size of the global batch it is part of.
Batch = tuple[torch.Tensor, torch.Tensor, int]
Shard = tuple[torch.Tensor, int]


class Examples(Dataset[Batch]):
    """A whole shard at a time: one gather instead of a Python call for each image."""

    def __init__(self, images: Images, labels: Labels) -> None:
        # NHWC -> NCHW, once; cloned, since a permuted view would hand its strides on to the gradients.
        self.images = torch.from_numpy(images).permute(0, 3, 1, 2).clone(memory_format=torch.contiguous_format)
        self.labels = torch.from_numpy(labels)

    def __getitem__(self, shard: Shard) -> Batch:
        indices, count = shard
        return self.images[indices], self.labels[indices], count


class ShardSampler(Sampler[Shard]):
    """This rank's indices of each batch, and the batch's global size. Unlike DistributedSampler it pads nothing."""

    def __init__(self, num_examples: int, batch_size: int, rank: int, num_replicas: int) -> None:
        self.bounds = shards(num_examples, batch_size, num_replicas)[:, rank]
        self.order = torch.arange(num_examples)

    def __iter__(self) -> Iterator[Shard]:
        for start, stop, count in self.bounds.tolist():
            yield self.order[start:stop], count

    def __len__(self) -> int:
        return len(self.bounds)


class EpochSampler(ShardSampler):
    """The shuffled batches of an epoch, which `set_epoch` chooses; as many as the run still takes."""

    def __init__(self, experiment: Experiment, rank: int) -> None:
        config, plan = experiment.config, experiment.plan
        super().__init__(plan.train_size, config.batch_size, rank, config.devices)
        self.seed, self.plan, self.epoch = config.seed, plan, 1

    def set_epoch(self, epoch: int) -> None:
        """Counts from 0, as for DistributedSampler and as Lightning does, which calls it too."""
        self.epoch = epoch + 1

    def __iter__(self) -> Iterator[Shard]:
        self.order = torch.from_numpy(epoch_order(self.seed, self.epoch, self.plan.train_size))
        yield from itertools.islice(super().__iter__(), len(self))

    def __len__(self) -> int:
        return self.plan.steps_in_epoch(self.epoch)


def train_data(experiment: Experiment, rank: int) -> DataLoader[Batch]:
    """The training batches of one rank; `loader.sampler.set_epoch` comes before every epoch."""
    dataset = experiment.dataset
    return load(Examples(dataset.train_images, dataset.train_labels), EpochSampler(experiment, rank), experiment)


def test_data(experiment: Experiment, rank: int) -> DataLoader[Batch]:
    """The test set once, in its own order; the shards of one rank."""
    dataset, config = experiment.dataset, experiment.config
    sampler = ShardSampler(len(dataset.test_images), config.eval_batch_size, rank, config.devices)
    return load(Examples(dataset.test_images, dataset.test_labels), sampler, experiment)


def load(examples: Examples, sampler: ShardSampler, experiment: Experiment) -> DataLoader[Batch]:
    # batch_size=None: the sampler's items are whole shards already. Pinned memory lets copies to a GPU overlap.
    return DataLoader(examples, sampler=sampler, batch_size=None, pin_memory=experiment.config.accelerator == "gpu")
