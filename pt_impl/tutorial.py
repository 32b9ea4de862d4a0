"""The additions of `--mode tutorial` in PyTorch: data path and loss as PyTorch's own documentation teaches them.

The pages, as of PyTorch 2.15, are "Training a Classifier" (beginner_source/blitz/cifar10_tutorial.py in
pytorch/tutorials) and, for several devices, "Multi GPU training with DDP" (beginner_source/ddp_series_multigpu.rst).
They teach a map-style data set, whose transforms are called for each image; a DataLoader that stacks the images; and
the mean of a batch's losses. The loader has no worker processes, as by default and on most pages.
"""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision import transforms
from torchvision.transforms import functional

from common.data.formats import Images, Labels
from common.experiment import Experiment
from common.spec.augmentation import Augmentation
from common.spec.batches import EVAL_BATCH_SIZE
from common.spec.options import TrainConfig
from common.spec.randomness import positions, visits
from pt_impl.data import Batch, TrainSampler, make_samplers
from pt_impl.networks import Criterion
from pt_impl.precision import DTYPES, LossScaler


class Augment:
    """RandomCrop and RandomHorizontalFlip, but with the random numbers of common/spec.

    The random numbers of torchvision's transforms depend on all earlier ones.
    """

    def __init__(self, experiment: Experiment, augmentation: Augmentation) -> None:
        self.augmentation, self.image_shape = augmentation, experiment.dataset.image_shape
        every = np.arange(len(experiment.dataset.train_labels))
        self.draws_of_epoch = functools.lru_cache(1)(lambda epoch: augmentation.draws(visits(epoch, every)))

    def __call__(self, image: Any, visit: int) -> Any:
        epoch, position = divmod(visit, 2**32)
        top, left, flipped = (numbers[position].item() for numbers in self.draws_of_epoch(epoch))
        height, width, _ = self.image_shape
        image = functional.crop(functional.pad(image, self.augmentation.padding), top, left, height, width)
        return functional.hflip(image) if flipped else image


class ImageDataset(Dataset[tuple[Any, int]]):
    """A map-style data set like torchvision's: its items are single images, transformed, with their labels."""

    def __init__(self, experiment: Experiment, images: Images, labels: Labels, augment: Augment | None = None) -> None:
        dataset, self.drops = experiment.dataset, experiment.network.drops
        self.images, self.labels, self.augment = images, labels, augment
        mean, deviation = dataset.shift.astype(float) / 255, 1 / (dataset.scale.astype(float) * 255)
        # ToTensor makes numbers from 0 to 1, and puts channels first.
        self.transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize(mean, deviation)])

    def __getitem__(self, visit: int) -> tuple[Any, int]:
        """Instead of an index takes a visit, see common/spec/randomness.py, to which random numbers belong."""
        index = positions(visit)
        image = self.images[index]
        if image.shape[-1] == 1:
            image = image.squeeze(-1)
        image = Image.fromarray(image)
        if self.augment:
            image = self.augment(image, visit)
        image = self.transform(image)
        return ((image, visit) if self.drops else image), int(self.labels[index])


class ExampleSampler(TrainSampler):
    """This rank's examples of an epoch, one by one, each as its visit.

    Used instead of DistributedSampler: the order is that of common/spec, and a rank gets consecutive examples of each
    batch, as in the other implementations. As there, all ranks have equally many examples: if the last batch can't be
    divided equally, some of its examples are repeated, which is another training.
    """

    def __iter__(self) -> Iterator[int]:
        order = self.visits()
        for shards in self.plan.shards(self.epoch + 1, self.num_replicas):
            start, count = shards[0, 0], shards[0, 2]
            size = -(-count // self.num_replicas)
            yield from order[start + (self.rank * size + np.arange(size)) % count].tolist()

    def __len__(self) -> int:
        counts = self.plan.shards(self.epoch + 1, self.num_replicas)[:, 0, 2]
        return int((-(-counts // self.num_replicas)).sum())


def make_loaders(experiment: Experiment, rank: int) -> tuple[DataLoader[Batch], DataLoader[Batch]]:
    """The training and test batches of one rank. Call `loader.sampler.set_epoch` before every training epoch."""
    dataset, config = experiment.dataset, experiment.config
    torch.set_default_dtype(DTYPES[config.precision])  # of ToTensor, for --precision 64
    augment = Augment(experiment, experiment.augmentation) if experiment.augmentation else None
    train_set = ImageDataset(experiment, dataset.train_images, dataset.train_labels, augment)
    test_set = ImageDataset(experiment, dataset.test_images, dataset.test_labels)
    train_sampler = ExampleSampler(experiment.plan, config.seed, rank, config.num_shards)
    _, test_shards = make_samplers(experiment, rank)
    test_sampler = [visit for shard, _ in test_shards for visit in shard.tolist()]
    options: dict[str, Any] = {
        "collate_fn": lambda examples: Batch(*default_collate(examples), len(examples) * config.num_shards),
        "pin_memory": config.accelerator == "gpu",
    }
    return (
        DataLoader(train_set, config.batch_size // config.num_shards, sampler=train_sampler, **options),
        DataLoader(test_set, -(-EVAL_BATCH_SIZE // config.num_shards), sampler=test_sampler, **options),
    )


def forward_backward(
    model: nn.Module,
    criterion: Criterion,
    scaler: LossScaler,
    autocast: torch.autocast,
    config: TrainConfig,
    batch: Batch,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds to the gradients; returns this replica's shares of the global loss and of the number of correct answers."""
    inputs, labels, _ = batch
    with autocast:
        logits = model(inputs)
        loss = criterion(logits, labels)
    scaler.scale(loss).backward()  # DistributedDataParallel averages the replicas' gradients
    return loss.detach() / config.num_shards, (logits.detach().argmax(dim=1) == labels).sum()
