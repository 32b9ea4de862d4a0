"""Gradient accumulation: one step, computed in several parts, on a batch that does not fit into memory.

python gradient_accumulation.py
torchrun --standalone --nproc-per-node 2 gradient_accumulation.py
"""

import os
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
import torch.distributed.nn  # before a process group is created; see exercises/PT_CNN_MultiGPU.py
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from exercises.data import load_examples

STEPS, BATCH_SIZE, PART_SIZE, LEARNING_RATE = 20, 256, 48, 0.1


def split(images: Tensor, labels: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    """A batch in parts of `size` examples, in order; the last part may be smaller."""
    # Gap 1 (torch.split)
    ### BEGIN SOLUTION
    return list(zip(images.split(size), labels.split(size), strict=True))
    ### END SOLUTION


def without_reduction(model: nn.Module) -> AbstractContextManager[None]:
    """A context for forward and backward passes that add to this process's gradients only, and wait for no other."""
    # Gap 2: DistributedDataParallel and its subclasses have such a context; other models need none (nullcontext).
    ### BEGIN SOLUTION
    return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()
    ### END SOLUTION


def train_step(model: nn.Module, optimizer: Optimizer, images: Tensor, labels: Tensor, part_size: int) -> float:
    """One step on the mean loss of the batch, with memory for only `part_size` examples; returns the mean loss.

    The gradients are reduced over the processes once. The loss is not: each process returns that of its own batch.
    """
    parts = split(images, labels, part_size)
    total = 0.0
    # Gap 3: clear old gradients, call backward for each part with its share of the mean, and update the weights. Only
    # the passes of the last part, forward and backward, reduce the gradients.
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    for number, (part_images, part_labels) in enumerate(parts, start=1):
        with without_reduction(model) if number < len(parts) else nullcontext():
            loss = F.cross_entropy(model(part_images), part_labels, reduction="sum") / len(labels)
            loss.backward()
            total += loss.item()
    optimizer.step()
    ### END SOLUTION
    return total


def main() -> None:
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    alone = {"store": dist.HashStore(), "rank": 0, "world_size": 1}  # without torchrun
    dist.init_process_group("gloo", **({} if world_size > 1 else alone))
    data = load_examples()
    for part_size in (BATCH_SIZE, PART_SIZE):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        model = DistributedDataParallel(network)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        for step in range(STEPS):
            chosen = (torch.arange(rank, BATCH_SIZE, world_size) + step * BATCH_SIZE) % len(data.train_labels)
            images, labels = torch.from_numpy(data.train_images)[chosen], torch.from_numpy(data.train_labels)[chosen]
            loss = torch.tensor(train_step(model, optimizer, images, labels, part_size)) / world_size
        dist.all_reduce(loss)
        if rank == 0:
            print(f"{world_size} process(es), parts of {part_size:3}: loss {loss:.6f} after {STEPS} steps")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
