"""Batches in PyTorch: a sampler gives each rank its shard of each batch, gathered on the device or ahead of it."""

import itertools
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from common.batches import epoch_order, shards
from common.config import TrainConfig
from common.experiment import Experiment
from common.formats import Images, Labels

# A batch: images uint8 (n, C, H, W), in memory channels last as they are stored; labels int64 (n,); and the size of
# the global batch it is part of.
Batch = tuple[torch.Tensor, torch.Tensor, int]
Shard = tuple[torch.Tensor, int]


class ShardSampler(Sampler[Shard]):
    """This rank's indices of each batch, and the batch's global size. Unlike DistributedSampler it pads nothing."""

    def __init__(self, num_examples: int, batch_size: int, rank: int, num_replicas: int, device: torch.device) -> None:
        """`device`: where the data are; the indices go there once an epoch."""
        self.bounds = shards(num_examples, batch_size, num_replicas)[:, rank]
        self.device = device
        self.order = torch.arange(num_examples, device=device)

    def __iter__(self) -> Iterator[Shard]:
        for start, stop, count in self.bounds.tolist():
            yield self.order[start:stop], count

    def __len__(self) -> int:
        return len(self.bounds)


class EpochSampler(ShardSampler):
    """The shuffled batches of an epoch, which `set_epoch` chooses; as many as the run still takes."""

    def __init__(self, experiment: Experiment, rank: int, device: torch.device) -> None:
        config, plan = experiment.config, experiment.plan
        super().__init__(plan.train_size, config.batch_size, rank, config.devices, device)
        self.seed, self.plan, self.epoch = config.seed, plan, 1

    def set_epoch(self, epoch: int) -> None:
        """Counts from 0, as for DistributedSampler and as Lightning does, which calls it too."""
        self.epoch = epoch + 1

    def __iter__(self) -> Iterator[Shard]:
        order = torch.from_numpy(epoch_order(self.seed, self.epoch, self.plan.train_size))
        self.order = order.to(self.device)
        yield from itertools.islice(super().__iter__(), len(self))

    def __len__(self) -> int:
        return self.plan.steps_in_epoch(self.epoch)


class Resident:
    """A data set in the device's memory: one gather for each batch, as a part of the step."""

    def __init__(self, images: Images, labels: Labels, device: torch.device) -> None:
        self.device = device
        self.images, self.labels = torch.tensor(images).to(device), torch.from_numpy(labels).to(device)


class ResidentLoader:
    """What a DataLoader is, without its machinery, which takes longer than a gather."""

    batch_sampler = None  # as in a DataLoader whose sampler gives whole batches; Lightning asks for it

    def __init__(self, data: Resident, sampler: ShardSampler) -> None:
        self.data, self.sampler = data, sampler

    def __iter__(self) -> Iterator[Batch]:
        images, labels = self.data.images, self.data.labels
        for indices, count in self.sampler:
            yield channels_first(images.index_select(0, indices)), labels.index_select(0, indices), count

    def __len__(self) -> int:
        return len(self.sampler)


class Streamed(Dataset[Batch]):
    """A data set in the host's memory, or in a file mapped into it: a whole shard at a time."""

    device = torch.device("cpu")

    def __init__(self, images: Images, labels: Labels) -> None:
        self.images, self.labels = images, labels

    def __getitem__(self, shard: Shard) -> Batch:
        indices, count = shard
        images, labels = (torch.from_numpy(array[indices.numpy()]) for array in (self.images, self.labels))
        return channels_first(images), labels, count


Data = Resident | Streamed
Loader = ResidentLoader | DataLoader[Batch]


def make_data(images: Images, labels: Labels, config: TrainConfig, device: torch.device) -> Data:
    return Resident(images, labels, device) if config.data_on == "device" else Streamed(images, labels)


def load(data: Data, sampler: ShardSampler, config: TrainConfig) -> Loader:
    if isinstance(data, Resident):
        return ResidentLoader(data, sampler)
    # batch_size=None: the sampler's items are whole shards already. Pinned memory lets copies to a GPU overlap.
    return DataLoader(data, sampler=sampler, batch_size=None, pin_memory=config.accelerator == "gpu")


def train_data(experiment: Experiment, rank: int, device: torch.device) -> Loader:
    """The training batches of one rank; `loader.sampler.set_epoch` comes before every epoch."""
    dataset, config = experiment.dataset, experiment.config
    data = make_data(dataset.train_images, dataset.train_labels, config, device)
    return load(data, EpochSampler(experiment, rank, data.device), config)


def test_data(experiment: Experiment, rank: int, device: torch.device) -> Loader:
    """The test set once, in its own order; the shards of one rank."""
    dataset, config = experiment.dataset, experiment.config
    data = make_data(dataset.test_images, dataset.test_labels, config, device)
    size = len(dataset.test_images)
    return load(data, ShardSampler(size, config.eval_batch_size, rank, config.devices, data.device), config)


def channels_first(images: torch.Tensor) -> torch.Tensor:
    """(n, H, W, C) -> (n, C, H, W), as a view: torch.channels_last, which is what convolutions like best."""
    return images.permute(0, 3, 1, 2)


def to_device(batch: Batch, device: torch.device) -> Batch:
    images, labels, count = batch
    return images.to(device, non_blocking=True), labels.to(device, non_blocking=True), count
