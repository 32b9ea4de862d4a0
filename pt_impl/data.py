"""Batches in PyTorch: a DataLoader over the shared arrays, whose sampler gives each rank its shard of each batch."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, Sampler

from common.data.datasets import Dataset as Arrays
from common.data.formats import Images, Labels
from common.experiment import Experiment
from common.spec.augmentation import Augmentation
from common.spec.batches import EVAL_BATCH_SIZE, Plan, epoch_order, shards
from common.spec.batches import Batch as Batch
from common.spec.options import Precision
from common.spec.randomness import positions, visits
from pt_impl.augment import Augment
from pt_impl.precision import DTYPES

# The visits of a shard, int64 (n,), see common/spec/randomness.py, and the size of the global batch it is part of.
Shard = tuple[torch.Tensor, int]


class Normalise:
    """Stored images (n, H, W, C) to the network's input, (n, C, H, W), as ToTensor and Normalize do."""

    def __init__(self, dataset: Arrays, precision: Precision) -> None:
        self.dtype = DTYPES[precision]
        self.shift, self.scale = (torch.from_numpy(array).to(self.dtype) for array in (dataset.shift, dataset.scale))

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return ((images.to(self.dtype) - self.shift) * self.scale).permute(0, 3, 1, 2).contiguous()


class Prepare:
    """Converts stored images to a network's inputs, see `Batch`; augments them if there is an augmentation."""

    def __init__(
        self, experiment: Experiment, normalise: Normalise, augmentation: Augmentation | None = None, rank: int = 0
    ) -> None:
        self.normalise, self.augmentation, self.drops = normalise, augmentation, experiment.network.drops
        self.looked_at = experiment.config.strategy != "pipeline" or rank == 0  # the second stage needs no images

    def __call__(self, images: torch.Tensor, visits: torch.Tensor) -> Any:
        """`images`: as stored, (n, H, W, C)."""
        if self.looked_at:
            images = self.augmented(images, visits)
        return (images, visits) if self.drops else images

    def augmented(self, images: torch.Tensor, visits: torch.Tensor) -> torch.Tensor:
        """The images, normalised, and augmented if there is an augmentation."""
        if not self.augmentation:
            return self.normalise(images)
        return self.normalise(Augment(self.augmentation, visits)(images))


class ArrayDataset(Dataset[Batch]):
    """The shared arrays, in memory or mapped from a file. Its items are whole shards, not single images."""

    def __init__(self, images: Images, labels: Labels, transform: Callable[..., Any]) -> None:
        """`transform`: a function of stored images (n, H, W, C) and visits, see `Prepare`."""
        self.images, self.labels, self.transform = images, labels, transform

    def __getitem__(self, shard: Shard) -> Batch:
        visits, count = shard
        indices = positions(visits.numpy())
        images, labels = (torch.from_numpy(array[indices]) for array in (self.images, self.labels))
        return Batch(self.transform(images, visits), labels, count)


class ShardSampler(Sampler[Shard]):
    """This rank's shard of each batch of the test set, in its own order.

    Used instead of DistributedSampler, which repeats examples to make all shards the same size.
    """

    def __init__(self, num_examples: int, batch_size: int, rank: int, num_replicas: int) -> None:
        self.num_examples, self.all_bounds = num_examples, shards(num_examples, batch_size, num_replicas)[:, rank]

    def visits(self) -> torch.Tensor:
        """int64 (num_examples,): the examples in the order of the batches."""
        return torch.arange(self.num_examples)

    def bounds(self) -> NDArray[np.int64]:
        """int64 (num_batches, 3): start and stop of each shard in that order, and the size of its global batch."""
        return self.all_bounds

    def __iter__(self) -> Iterator[Shard]:
        visits = self.visits()
        for start, stop, count in self.bounds().tolist():
            yield visits[start:stop], count

    def __len__(self) -> int:
        return len(self.bounds())


class TrainSampler(ShardSampler):
    """The shuffled batches of one epoch; `set_epoch` chooses the epoch."""

    def __init__(self, plan: Plan, seed: int, rank: int, num_replicas: int) -> None:
        self.plan, self.seed, self.rank, self.num_replicas = plan, seed, rank, num_replicas
        self.epoch = plan.epochs_done

    def set_epoch(self, epoch: int) -> None:
        """Chooses an epoch, counted from 0 as in DistributedSampler. Lightning calls it too."""
        self.epoch = epoch

    def visits(self) -> torch.Tensor:
        epoch = self.epoch + 1
        return torch.from_numpy(visits(epoch, epoch_order(self.seed, epoch, self.plan.train_size)))

    def bounds(self) -> NDArray[np.int64]:
        return self.plan.shards(self.epoch + 1, self.num_replicas)[:, self.rank]


def make_loaders(experiment: Experiment, rank: int) -> tuple[DataLoader[Batch], DataLoader[Batch]]:
    """The training and test batches of one rank. Call `loader.sampler.set_epoch` before every training epoch."""
    dataset, config = experiment.dataset, experiment.config
    train_sampler, test_sampler = make_samplers(experiment, rank)
    normalise = Normalise(dataset, config.precision)
    prepare_train, prepare_test = (
        Prepare(experiment, normalise, experiment.augmentation, rank),
        Prepare(experiment, normalise, rank=rank),
    )
    train_set = ArrayDataset(dataset.train_images, dataset.train_labels, prepare_train)
    test_set = ArrayDataset(dataset.test_images, dataset.test_labels, prepare_test)
    # batch_size=None: the items are whole shards already. Pinned memory lets copies to a GPU overlap with the step.
    pin_memory = config.stages_on[rank % len(config.stages_on)] == "gpu"
    return (
        DataLoader(train_set, sampler=train_sampler, batch_size=None, pin_memory=pin_memory),
        DataLoader(test_set, sampler=test_sampler, batch_size=None, pin_memory=pin_memory),
    )


def to_device(batch: Batch, device: torch.device) -> Batch:
    inputs = batch.inputs
    if isinstance(inputs, tuple | list):
        inputs = tuple(part.to(device, non_blocking=True) for part in inputs)
    else:
        inputs = inputs.to(device, non_blocking=True)
    return Batch(inputs, batch.labels.to(device, non_blocking=True), batch.count)


def make_samplers(experiment: Experiment, rank: int) -> tuple[TrainSampler, ShardSampler]:
    """The samplers of the training and of the test batches of one rank."""
    config, test_size = experiment.config, len(experiment.dataset.test_images)
    rank %= config.num_shards  # in a pipeline every rank has whole batches
    return (
        TrainSampler(experiment.plan, config.seed, rank, config.num_shards),
        ShardSampler(test_size, EVAL_BATCH_SIZE, rank, config.num_shards),
    )
