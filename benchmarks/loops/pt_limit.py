"""PyTorch's limit: a bare loop in turns with pt_impl's; see benchmarks.within_a_run. Several devices need torchrun.

The bare loop is as fast as PyTorch can be, for either mode: network and images have their channels last. With
`--compile true` its network is compiled, and on a GPU the whole step is one CUDA graph, so a step is a single launch.
"""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.within_a_run import BareLoop, train_beside
from common.experiment import Experiment
from pt_impl.backend import BACKEND
from pt_impl.data import make_loaders
from pt_impl.networks import make_network
from pt_impl.weights import load_weights


def make_bare(experiment: Experiment) -> BareLoop:
    """A loop of the training step on one batch, in memory as the network's input."""
    config = experiment.config
    rank = dist.get_rank() if dist.is_initialized() else 0
    device = torch.device("cuda", rank) if config.accelerator == "gpu" else torch.device("cpu")
    network = make_network(experiment.network, config)
    load_weights(network, experiment.network, experiment.initial_weights)
    model: nn.Module = network.to(device, memory_format=torch.channels_last)
    if config.devices > 1:
        model = DistributedDataParallel(network, device_ids=[device] if device.type == "cuda" else None)
    if config.compile:
        model = torch.compile(model, dynamic=False)
    train_loader, _ = make_loaders(experiment, rank)
    images, labels, _ = next(iter(train_loader))
    images, labels = images.to(device, memory_format=torch.channels_last), labels.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=config.momentum)

    def take_step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    step = capture(take_step) if config.compile and device.type == "cuda" and config.devices == 1 else take_step

    def loop(steps: int) -> float:
        BACKEND.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        BACKEND.synchronize()
        return time.perf_counter() - start

    return loop


def capture(take_step: Callable[[], None]) -> Callable[[], None]:
    """The step as one CUDA graph, which repeats it on the same tensors.

    The steps before it, on a stream of their own, compile the network and make the optimizer's state; see
    "Whole-network capture" in PyTorch's notes on CUDA semantics.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            take_step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        take_step()
    graph.step = take_step  # with the tensors that the graph reads: without them their memory would be given to others
    return graph.replay


if __name__ == "__main__":
    train_beside(make_bare, BACKEND, "benchmarks.loops.pt_limit")
