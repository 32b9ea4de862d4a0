"""MNIST in PyTorch as its tutorials train it: torchvision's data set, transforms for each image, a DataLoader."""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from benchmarks.loops.timed import TimedSteps
from common.data.catalogue import dataset_entry
from common.platform.cli import parse_options
from common.platform.ending import as_program
from common.spec.networks import NetworkSpec
from common.spec.options import TrainConfig
from pt_impl.backend import BACKEND
from pt_impl.networks import make_network
from pt_impl.replicas import join_replica_group


def make_loader(config: TrainConfig) -> DataLoader:
    """The loader of the training set. The files are unpacked into the run folder, where torchvision reads them."""
    assert config.run_dir is not None
    mnist = dataset_entry(config)
    (source,) = mnist.sources
    folder = config.run_dir / source.folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, (_, content) in zip(source.md5, source.read(config.data_dir), strict=True):
        (folder / name).write_bytes(content)
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize(mnist.mean, mnist.std)])
    dataset = datasets.MNIST(config.run_dir, train=True, transform=transform)
    return DataLoader(dataset, batch_size=config.batch_size, shuffle=True)


def main() -> None:
    config = BACKEND.resolve(
        parse_options(TrainConfig, "python -m benchmarks.loops.pt_usual", "PyTorch as in tutorials.")
    )
    device = join_replica_group(config, 0, "")
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
