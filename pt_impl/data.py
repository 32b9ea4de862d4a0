"""Batches in PyTorch: a DataLoader over the shared arrays, whose sampler gives each rank its shard of each batch."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, Sampler

from common.data.formats import Images, Labels
from common.experiment import Experiment
from common.spec.augmentation import Augmentation
from common.spec.batches import EVAL_BATCH_SIZE, Plan, epoch_order, shards
from common.spec.batches import Batch as Batch
from common.spec.randomness import STREAM_AUGMENTATION, positions, visits
from pt_impl.precision import DTYPES
from pt_impl.randomness import philox

# The visits of a shard, int64 (n,), see common/spec/randomness.py, and the size of the global batch it is part of.
Shard = tuple[torch.Tensor, int]


def augment(images: torch.Tensor, visits: torch.Tensor, augmentation: Augmentation) -> torch.Tensor:
    """Crops and mirrors images (n, H, W, C); those of a visit, int64 (n,), have random numbers of their own.

    Used instead of torchvision's transforms. These draw once for a whole batch, and their random numbers depend on all
    earlier ones.
    """
    (height, width), pad, device = images.shape[1:3], augmentation.padding, images.device
    words = philox(augmentation.seed, visits, 0, STREAM_AUGMENTATION)
    vertical, horizontal, mirror = (word[:, None] for word in words[:3])
    # A word times n, shifted right by 32 bits, is an integer from 0 to n - 1.
    rows = torch.arange(height, device=device) + (vertical * (2 * pad + 1) >> 32)
    columns = torch.arange(width, device=device)
    if augmentation.flips:
        columns = torch.where(mirror >> 31 == 1, columns.flip(0), columns)
    columns = columns + (horizontal * (2 * pad + 1) >> 32)
    examples = torch.arange(len(images), device=device)
    return F.pad(images, (0, 0, pad, pad, pad, pad))[examples[:, None, None], rows[:, :, None], columns[:, None, :]]


class Prepare:
    """Converts stored images to a network's inputs, see `Batch`; augments them if there is an augmentation.

    Args:
      rank: in a pipeline, the second one needs no images.
      device, memory_format: where images are prepared, and their layout in memory.
    """

    def __init__(
        self,
        experiment: Experiment,
        augmentation: Augmentation | None = None,
        rank: int = 0,
        device: torch.device | str = "cpu",
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        dataset, config = experiment.dataset, experiment.config
        self.dtype, self.memory_format = DTYPES[config.precision], memory_format
        self.shift, self.scale = (torch.from_numpy(a).to(device, self.dtype) for a in (dataset.shift, dataset.scale))
        self.augmentation, self.drops = augmentation, experiment.network.drops
        self.needs_images = config.strategy != "pipeline" or rank == 0

    def __call__(self, images: torch.Tensor, visits: torch.Tensor) -> Any:
        """`images`: as stored, (n, H, W, C)."""
        if self.needs_images:
            if self.augmentation:
                images = augment(images, visits, self.augmentation)
            images = self.normalised(images)
        return (images, visits) if self.drops else images

    def normalised(self, images: torch.Tensor) -> torch.Tensor:
        """Stored images (n, H, W, C) to the network's input, (n, C, H, W), as ToTensor and Normalize do."""
        images = ((images.to(self.dtype) - self.shift) * self.scale).permute(0, 3, 1, 2)
        return images.contiguous(memory_format=self.memory_format)


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
    prepare_train = Prepare(experiment, experiment.augmentation, rank)
    train_set = ArrayDataset(dataset.train_images, dataset.train_labels, prepare_train)
    test_set = ArrayDataset(dataset.test_images, dataset.test_labels, Prepare(experiment, rank=rank))
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
