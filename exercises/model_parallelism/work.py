"""Model parallelism: a network in two stages, each in its own process. Each batch passes through them in parts.

torchrun --standalone --nproc-per-node 2 model_parallelism.py
"""

import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer

FEATURES, HIDDEN, CLASSES = 32, 1024, 10
BATCH_SIZE, STEPS, LEARNING_RATE = 512, 20, 0.05


def make_stage(stage: int) -> nn.Module:
    """Stage 0: (B, FEATURES) to (B, HIDDEN); stage 1: (B, HIDDEN) to logits (B, CLASSES)."""
    torch.manual_seed(stage)
    if stage == 0:
        return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())
    return nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


def first_step(stage: nn.Module, optimizer: Optimizer, parts: list[torch.Tensor], other: int) -> None:
    """One training step of stage 0 on the images of a batch, in `parts`; `other`: the rank of stage 1, not always 1.

    All parts go forward, each once, before the first goes backward (GPipe). Each is sent before the next goes forward.
    """
    optimizer.zero_grad()
    outputs = []
    for images in parts:
        # Gap 1: forward, send what the other stage needs, keep what the backward pass needs.
        ### BEGIN SOLUTION
        outputs.append(stage(images))
        dist.send(outputs[-1].detach(), other)
        ### END SOLUTION
    for output in outputs:
        # Gap 2: what comes back from the other stage, and what does this stage do with it?
        ### BEGIN SOLUTION
        gradient = torch.empty_like(output)
        dist.recv(gradient, other)
        output.backward(gradient)
        ### END SOLUTION
    optimizer.step()


def second_step(stage: nn.Module, optimizer: Optimizer, labels: list[torch.Tensor], width: int, other: int) -> float:
    """One training step of stage 1; returns the mean loss of the batch. `other`: the rank of stage 0, not always 0.

    Stage 0 sends tensors of shape (part, `width`). It receives nothing until all parts have gone forward, so a gradient
    that is sent earlier would wait for ever.
    """
    optimizer.zero_grad()
    count = sum(len(label) for label in labels)
    losses, inputs = [], []
    for part in labels:
        # Gap 3: receive (into a tensor with the stage's dtype and device), and compute this part's share of the mean
        # over the whole batch. The input must be a tensor that gets a gradient.
        ### BEGIN SOLUTION
        received = next(stage.parameters()).new_empty(len(part), width)
        dist.recv(received, other)
        inputs.append(received.requires_grad_())
        losses.append(F.cross_entropy(stage(inputs[-1]), part, reduction="sum") / count)
        ### END SOLUTION
    for received, loss in zip(inputs, losses, strict=True):
        # Gap 4: backward, and send what the other stage waits for.
        ### BEGIN SOLUTION
        loss.backward()
        dist.send(received.grad, other)
        ### END SOLUTION
    optimizer.step()
    return sum(loss.item() for loss in losses)


def bubble(stages: int, parts: int) -> float:
    """The share of a step in which a stage is idle in GPipe's schedule, if all parts take all stages the same time."""
    # Gap 5: draw it: stages as rows, time as columns.
    ### BEGIN SOLUTION
    return (stages - 1) / (parts + stages - 1)
    ### END SOLUTION


def main() -> None:
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world_size != 2:
        raise SystemExit("two stages: start it with torchrun --standalone --nproc-per-node 2 model_parallelism.py")
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(BATCH_SIZE, FEATURES, generator=generator)
    labels = torch.randint(CLASSES, (BATCH_SIZE,), generator=generator)
    for number in (1, 2, 4, 8):
        stage = make_stage(rank)
        optimizer = torch.optim.SGD(stage.parameters(), lr=LEARNING_RATE)
        for step in range(STEPS + 1):
            if step == 1:  # the first step is slower than all others, and not timed
                dist.barrier()
                start = time.perf_counter()
            if rank == 0:
                first_step(stage, optimizer, list(images.chunk(number)), other=1)
            else:
                loss = second_step(stage, optimizer, list(labels.chunk(number)), HIDDEN, other=0)
        dist.barrier()
        if rank == 1:
            seconds, idle = (time.perf_counter() - start) / STEPS, bubble(2, number)
            print(f"{number} part(s): loss {loss:.5f}, {seconds * 1000:5.1f} ms a step, bubble {idle:.0%}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
