"""PyTorch's loops; see benchmarks.loops."""

import time

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from benchmarks.within_a_run import Loop, timed
from common.data.datasets import dataset_entry
from common.experiment import Experiment
from common.spec.options import TrainConfig
from pt_impl.backend import BACKEND
from pt_impl.data import make_loaders
from pt_impl.networks import make_network
from pt_impl.weights import load_weights


def make_limit(experiment: Experiment) -> Loop:
    """As fast as PyTorch can be, for either mode: network and images have their channels last.

    With `--compile true` its network is compiled, and on a GPU the whole step is one CUDA graph: see "Whole-network
    capture" in PyTorch's notes on CUDA semantics.
    """
    config = experiment.config
    device = torch.device("cuda" if config.accelerator == "gpu" else "cpu")
    network = make_network(experiment.network, config)
    load_weights(network, experiment.network, experiment.initial_weights)
    network.to(device, memory_format=torch.channels_last)
    model = torch.compile(network, dynamic=False) if config.compile else network
    images, labels, _ = next(iter(make_loaders(experiment, 0)[0]))
    images, labels = images.to(device, memory_format=torch.channels_last), labels.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=config.momentum)

    def train_step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    graph = None
    if config.compile and device.type == "cuda":
        side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # compiles the network and makes the optimizer's state
                train_step()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            train_step()

    return timed(graph.replay if graph else train_step, BACKEND.synchronize)


def make_loader(config: TrainConfig) -> DataLoader:
    """torchvision's data set, whose files are unpacked into the run folder; transforms for each image; a DataLoader."""
    (source,) = dataset_entry(config).sources
    (config.run_dir / source.folder).mkdir(parents=True)
    for name, (_, content) in zip(source.md5, source.read(config.data_dir), strict=True):
        (config.run_dir / source.folder / name).write_bytes(content)
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    dataset = datasets.MNIST(config.run_dir, train=True, transform=transform)
    return DataLoader(dataset, batch_size=config.batch_size, shuffle=True)


def make_usual(experiment: Experiment) -> Loop:
    config, loader = experiment.config, make_loader(experiment.config)
    model = make_network(experiment.network, config).to(memory_format=torch.contiguous_format)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.learning_rate, momentum=config.momentum)
    model.train()

    def loop(steps: int) -> float:
        start = time.perf_counter()
        for _, (images, labels) in zip(range(steps), loader, strict=False):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        print(f"loss {loss.item():.4f}")
        return time.perf_counter() - start

    return loop
