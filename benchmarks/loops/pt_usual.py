"""MNIST in PyTorch as its tutorials train it: torchvision's data set, transforms for each image, a DataLoader."""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from benchmarks.loops.timed import TimedSteps
from common.data.datasets import NORMALISATION
from common.data.published import MNIST
from common.platform.cli import parse_options
from common.platform.program import as_program
from common.spec.networks import NetworkSpec
from common.spec.options import TrainConfig
from pt_impl.networks import make_network
from pt_impl.replicas import join_group, setup_devices


def mnist_root(config: TrainConfig) -> Path:
    """The folder with the unpacked files in MNIST/raw, as torchvision expects; they are unpacked here if necessary."""
    paths = MNIST.fetch(config.data_dir)
    if all(path.suffix != ".gz" for path in paths.values()):
        return config.data_dir
    assert config.run_dir is not None
    root = config.run_dir / "unpacked"
    (root / MNIST.folder).mkdir(parents=True, exist_ok=True)
    for name, path in paths.items():
        (root / MNIST.folder / name).write_bytes(MNIST.read(path, name))
    return root


def make_loader(config: TrainConfig) -> DataLoader:
    mean, std, _ = NORMALISATION["mnist"]
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize(mean, std)])
    dataset = datasets.MNIST(mnist_root(config), train=True, transform=transform)
    return DataLoader(dataset, batch_size=config.batch_size, shuffle=True)


def main() -> None:
    config = setup_devices(
        parse_options(TrainConfig, "python -m benchmarks.loops.pt_usual", "PyTorch as in tutorials.")
    )
    device = join_group(config, 0, "")
    loader = make_loader(config)
    # PyTorch's default memory layout.
    model = make_network(NetworkSpec.make(config.model, (28, 28, 1), 10), config)
    model.to(device, memory_format=torch.contiguous_format)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.learning_rate, momentum=config.momentum)

    model.train()
    timed = TimedSteps(config)
    for step, (images, labels) in enumerate(loader):
        if step == config.max_steps:
            break
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if step % config.log_every_n_steps == 0:
            print(f"step {step}: loss {loss.item():.4f}")
        timed.step()


if __name__ == "__main__":
    with as_program("pt_usual"):
        main()
