"""PyTorch's bare loop: the training step over one batch in memory, on one device or under DistributedDataParallel."""

import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.paired import write_speed
from common.cli import parse_train_config
from common.config import TrainConfig
from common.errors import whole_program
from common.experiment import Experiment
from common.recorder import WARMUP_STEPS
from pt_impl.data import train_data
from pt_impl.devices import join_group, leave_group, setup_devices, synchronize, wait_for_replicas
from pt_impl.model import Normalise, load_weights, make_model


def loop(rank: int, config: TrainConfig, init_method: str) -> None:
    with whole_program("pt_bare"):
        device = join_group(config, rank, init_method)
        experiment = Experiment.make(config)
        network = make_model(experiment.model, config.precision)
        load_weights(network, experiment.model, experiment.initial_weights)
        model: nn.Module = network.to(device)
        if config.devices > 1:
            model = DistributedDataParallel(network, device_ids=[device] if device.type == "cuda" else None)
        images, labels, _ = next(iter(train_data(experiment, rank, device)))
        images = Normalise(experiment.dataset, config.precision, device)(images.to(device))
        labels = labels.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=config.momentum)

        steps = experiment.plan.total_steps
        for step in range(steps):
            if step == WARMUP_STEPS:
                synchronize()
                start = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
        synchronize()
        seconds = time.perf_counter() - start
        if rank == 0:
            write_speed(config.run_dir, images_per_second=(steps - WARMUP_STEPS) * config.batch_size / seconds)
        wait_for_replicas()
        leave_group()


def main() -> None:
    config = setup_devices(parse_train_config("benchmarks.loops.pt_bare", "PyTorch's bare loop."))
    if config.devices == 1:
        loop(0, config, "")
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(loop, (config, f"file://{Path(folder) / 'rendezvous'}"), nprocs=config.devices)


if __name__ == "__main__":
    with whole_program("pt_bare"):
        main()
