"""Dropout and augmentation in PyTorch, in lockstep and with PyTorch's own layers; see benchmarks.draws."""

import torch
from torch import nn
from torchvision.transforms import v2

from benchmarks.loops.timed import milliseconds
from benchmarks.paired import write_speed
from common.experiment import Experiment
from common.platform.cli import parse_options
from common.platform.program import as_program
from common.spec.options import TrainConfig
from common.spec.randomness import visits
from pt_impl.data import Normalise, Prepare
from pt_impl.networks import Dropout
from pt_impl.replicas import setup_devices, setup_process


def main(config: TrainConfig) -> None:
    config = setup_devices(config)
    setup_process(config)
    experiment = Experiment.make(config)
    dataset, size = experiment.dataset, config.batch_size
    images = torch.from_numpy(dataset.train_images[:size])
    positions = torch.arange(size)
    seen = visits(1, positions)
    values, dropout, own_dropout = torch.randn(size, 64, 12, 12), Dropout(0.25, config.seed, 0), nn.Dropout(0.25)
    prepare = Prepare(experiment, Normalise(dataset, config.precision), experiment.augmentation)
    own = v2.Compose(
        [
            v2.RandomCrop(32, padding=config.random_crop),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.25] * 3),
        ]
    )
    channels_first = images.permute(0, 3, 1, 2).contiguous()
    found = milliseconds(
        {
            "dropout": lambda: dropout(values, seen),
            "own_dropout": lambda: own_dropout(values),
            "augmentation": lambda: prepare(images, seen),
            "own_augmentation": lambda: torch.stack([own(image) for image in channels_first]),
        }
    )
    write_speed(config.run_dir, **found)


if __name__ == "__main__":
    with as_program("pt_draws"):
        main(parse_options(TrainConfig, "python -m benchmarks.loops.pt_draws", "PyTorch's draws."))
