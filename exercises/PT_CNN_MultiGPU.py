"""A CNN on several devices in PyTorch: one process per device, and DistributedDataParallel around the model.

From the project's folder:
    python -m exercises.PT_CNN_MultiGPU                                           one device
    torchrun --standalone --nproc-per-node 2 -m exercises.PT_CNN_MultiGPU         two: GPUs, or processes on the CPU
    sbatch exercises/PT_CNN_MultiGPU.slurm                                        a cluster
"""

import argparse
import os
import time

import torch
import torch.distributed as dist

# Imported before a process group exists. DistributedDataParallel would import this module later, and the module keeps
# the process group that exists at its import. The group's threads would then live until Python ends, which sometimes
# leads to a crash (pytorch/pytorch issue 190489).
import torch.distributed.nn
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from common.platform.machine import num_cores
from exercises.data import NAMES, Examples, load_examples

parser = argparse.ArgumentParser(prog="PT_CNN_MultiGPU", description="A CNN on several devices in PyTorch.")
parser.add_argument("--dataset", default="digits", choices=NAMES)
parser.add_argument("--data-dir", default="data", help="where data sets lie")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=64, help="of all devices together")
parser.add_argument("--learning-rate", type=float, default=0.05)
parser.add_argument("--seed", type=int, default=0)

Loader = DataLoader[tuple[torch.Tensor, ...]]

# --- 1. Design the model ---


def make_model(image_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    height, width, channels = image_shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, kernel_size=3, padding="same"),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, kernel_size=3, padding="same"),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 128),
        nn.ReLU(),
        nn.Linear(128, num_classes),
    )


# --- 2. Set up the ranks: torchrun has started a process for each device, and told each who it is ---


def join_processes() -> tuple[int, int, torch.device]:
    """This process's rank, the number of processes, and this process's device."""
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    else:
        processes_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        torch.set_num_threads(max(1, num_cores() // processes_here))  # an even share of the cores
    if world_size > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return rank, world_size, device


# --- 3. Read the data: every process has all of it, and a sampler deals a share out to each ---


def make_loaders(data: Examples, batch_size: int, rank: int, world_size: int, seed: int) -> tuple[Loader, Loader]:
    """This process's share of each training batch, and batches of its share of the test examples."""
    if batch_size % world_size:
        parser.error(f"--batch-size {batch_size}: must be a multiple of the {world_size} processes")
    training = TensorDataset(channels_first(data.train_images), torch.from_numpy(data.train_labels))
    sampler = DistributedSampler(training, world_size, rank, shuffle=True, seed=seed)
    train_loader = DataLoader(training, batch_size // world_size, sampler=sampler)
    # For testing, each process takes every world_size-th example. A DistributedSampler would repeat some examples to
    # make the shares equal.
    test_images, test_labels = data.test_images[rank::world_size], data.test_labels[rank::world_size]
    testing = TensorDataset(channels_first(test_images), torch.from_numpy(test_labels))
    return train_loader, DataLoader(testing, batch_size=1000)


def channels_first(images) -> torch.Tensor:  # (N, H, W, C) to (N, C, H, W)
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()


# --- 4. Train ---


def train_epoch(model, loader: Loader, optimizer, schedule, device: torch.device) -> tuple[float, int]:
    """The seconds of the epoch, and the number of images that this process has trained on."""
    model.train()
    images_done = 0
    start = clock(device)
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()  # DistributedDataParallel averages the gradients over the processes meanwhile
        optimizer.step()
        schedule.step()
        images_done += len(images)
    return clock(device) - start, images_done


def clock(device: torch.device) -> float:
    """Seconds, read after the device has finished all its work: a GPU works asynchronously to the program."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


# --- 5. Evaluate: sums over all processes, divided once ---


@torch.inference_mode()
def evaluate(model: nn.Module, loader: Loader, device: torch.device) -> float:
    """The share of correct answers over the whole test set."""
    model.eval()
    totals = torch.zeros(2, dtype=torch.int64, device=device)  # correct, all
    for images, labels in loader:
        answers = model(images.to(device)).argmax(dim=1)
        totals[0] += (answers == labels.to(device)).sum()
        totals[1] += len(labels)
    if dist.is_initialized():
        dist.all_reduce(totals)
    correct, count = totals.tolist()
    return correct / count


# --- 6. Display the results ---


def main() -> None:
    options = parser.parse_args()
    rank, world_size, device = join_processes()
    data = load_examples(options.dataset, options.data_dir)
    train_loader, test_loader = make_loaders(data, options.batch_size, rank, world_size, options.seed)

    torch.manual_seed(options.seed)
    network = make_model(data.train_images.shape[1:], data.num_classes).to(device)
    # Every process begins with the weights of rank 0, which DistributedDataParallel sends to all.
    model = DistributedDataParallel(network) if world_size > 1 else network
    optimizer = torch.optim.SGD(network.parameters(), lr=options.learning_rate, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * len(train_loader))

    if rank == 0:
        print(f"PyTorch on {world_size} x {device.type}, batches of {options.batch_size}", flush=True)
    seconds = 0.0
    for epoch in range(options.epochs):
        train_loader.sampler.set_epoch(epoch)  # another order in every epoch, the same in every process
        epoch_seconds, images_done = train_epoch(model, train_loader, optimizer, schedule, device)
        accuracy = evaluate(network, test_loader, device)
        seconds += epoch_seconds
        speed = images_done * world_size / epoch_seconds
        if rank == 0:
            print(f"epoch {epoch + 1:2}: test accuracy {accuracy:.2%}, {speed:,.0f} images/s", flush=True)
    if rank == 0:
        print(f"test accuracy {accuracy:.2%}, {speed:,.0f} images/s in the last epoch, {seconds:.1f} s of training")
    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
