"""From DataParallel to DistributedDataParallel: one process for each device; they share gradients and buffers.

python ddp.py                                      one process
torchrun --standalone --nproc-per-node 2 ddp.py    two
"""

import os

import torch
import torch.distributed as dist
import torch.distributed.nn  # before a process group is created; see exercises/PT_CNN_MultiGPU.py
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from exercises.data import load_examples

EPOCHS, BATCH_SIZE, LEARNING_RATE, SEED = 5, 64, 0.05, 0
Loader = DataLoader[tuple[torch.Tensor, ...]]


def join() -> tuple[int, int, torch.device]:
    """Adds this process to the process group. Returns its rank, the number of processes, and its device.

    torchrun sets RANK, WORLD_SIZE and LOCAL_RANK. Without torchrun this is the only process, and needs no group.
    """
    # Instead of device = torch.device("cuda"), with which nn.DataParallel used all GPUs.
    # Gap 1: read the environment, choose the device, and init_process_group: "nccl" for GPUs, "gloo" for CPUs.
    ### BEGIN SOLUTION
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if world_size > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return rank, world_size, device
    ### END SOLUTION


def make_loader(data: Dataset[tuple[torch.Tensor, ...]], batch_size: int, rank: int, world_size: int) -> Loader:
    """This process's share of each batch, shuffled with SEED. `batch_size`: of all processes together.

    Two processes together have the batches of one. No example is left out; one may be dealt out twice.
    """
    # Instead of DataLoader(data, batch_size, shuffle=True), whose batches nn.DataParallel split between the devices.
    # Gap 2: a DistributedSampler, and the size of this process's share (rounded down).
    ### BEGIN SOLUTION
    sampler = DistributedSampler(data, world_size, rank, shuffle=True, seed=SEED)
    return DataLoader(data, batch_size // world_size, sampler=sampler)
    ### END SOLUTION


def wrap(model: nn.Module, world_size: int) -> nn.Module:
    """The model whose backward pass averages all processes' gradients. Its forward pass sends rank 0's buffers."""
    # Instead of nn.DataParallel(model), which copied the weights to every device in each step.
    # Gap 3: what wraps the model now, if there is more than one process?
    ### BEGIN SOLUTION
    return DistributedDataParallel(model) if world_size > 1 else model
    ### END SOLUTION


def train_epoch(model: nn.Module, loader: Loader, optimizer: Optimizer, epoch: int, device: torch.device) -> float:
    """Returns in every process the mean loss over the examples of all processes."""
    # With nn.DataParallel nothing was needed here.
    # Gap 4: give each epoch another order of the examples. The order must be the same in every process.
    ### BEGIN SOLUTION
    loader.sampler.set_epoch(epoch)
    ### END SOLUTION
    totals = torch.zeros(2, dtype=torch.float64, device=device)  # sum of losses, number of examples
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        totals += torch.tensor([loss.item() * len(labels), len(labels)], dtype=torch.float64, device=device)
    # With nn.DataParallel one process saw all examples. Now each process has seen only its share.
    # Gap 5: what is the mean over the examples of all processes?
    ### BEGIN SOLUTION
    if dist.is_initialized():
        dist.all_reduce(totals)
    loss_sum, count = totals.tolist()
    return loss_sum / count
    ### END SOLUTION


def main() -> None:
    rank, world_size, device = join()
    data = load_examples()
    examples = TensorDataset(torch.from_numpy(data.train_images), torch.from_numpy(data.train_labels))
    loader = make_loader(examples, BATCH_SIZE, rank, world_size)
    torch.manual_seed(SEED)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    model = wrap(network, world_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    for epoch in range(EPOCHS):
        loss = train_epoch(model, loader, optimizer, epoch, device)
        if rank == 0:
            print(f"epoch {epoch + 1}: {world_size} process(es), {len(loader)} steps, mean loss {loss:.6f}")
    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
