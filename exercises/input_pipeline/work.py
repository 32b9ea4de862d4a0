"""The input pipeline: how long a step waits for its data, and how to load whole batches.

python input_pipeline.py
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

Batch = tuple[torch.Tensor, torch.Tensor]  # images: float32 (B, C, H, W), labels: int64 (B,)
Key = tuple[int, int]  # the number of the epoch, and the index of an example
EXAMPLES, BATCH_SIZE, WARMUP_STEPS = 8000, 256, 2
MEAN, STD = 0.4, 0.3  # of the pixels, from 0 to 1
PAD = 2  # an image is shifted by at most so many pixels
PROFILE_WAIT, PROFILE_WARMUP, PROFILE_ACTIVE = 2, 1, 5  # steps of a profile


# --- Measure: where does the time go? ---
def clock(device: torch.device) -> float:
    """Seconds, read when the device has done all its work (see the activity one_device)."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class Times(NamedTuple):
    waiting: float  # seconds until the batches were there
    computing: float  # seconds of the steps
    images: int


def measure(batches: Iterable[Batch], step: Callable[[Batch], None], device: torch.device, warmup: int) -> Times:
    """Does a step with each batch. The first `warmup` steps (or all, if there are fewer) are done, but not counted."""
    # Gap 1: read the clock when a batch is there, and when its step is done.
    ### BEGIN SOLUTION
    waiting = computing = 0.0
    images = 0
    done = clock(device)
    for number, batch in enumerate(batches):
        begin = clock(device)
        step(batch)
        end = clock(device)
        if number >= warmup:
            waiting += begin - done
            computing += end - begin
            images += len(batch[1])
        done = end
    return Times(waiting, computing, images)
    ### END SOLUTION


def largest_speed_up(share: float) -> float:
    """How many times as fast a training is without waiting. Now it waits for `share` of its time (below 1)."""
    # Gap 2
    ### BEGIN SOLUTION
    return 1 / (1 - share)
    ### END SOLUTION


def step_seconds(data: float, compute: float, workers: int) -> float:
    """Seconds of a step, once the workers have started. Loading a batch takes `data` seconds, its step `compute`.

    With 0 workers the program loads the batch itself, and then computes. Otherwise the workers load and the program
    computes at the same time. Each worker has a core of its own, and loads whole batches.
    """
    # Gap 3
    ### BEGIN SOLUTION
    return max(data / workers, compute) if workers else data + compute
    ### END SOLUTION


def profile_steps(batches: Iterable[Batch], step: Callable[[Batch], None]) -> profile:
    """Loads each batch and does its step under torch.profiler, and returns the profiler.

    It waits for PROFILE_WAIT steps, warms up for PROFILE_WARMUP, then records PROFILE_ACTIVE, once. It may end there.
    """
    # Gap 4: how does the profiler know that a step is over?
    ### BEGIN SOLUTION
    when = schedule(wait=PROFILE_WAIT, warmup=PROFILE_WARMUP, active=PROFILE_ACTIVE, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=when) as profiler:
        for batch in batches:
            step(batch)
            profiler.step()
    return profiler
    ### END SOLUTION


def costliest(events: Iterable, number: int) -> list[tuple[str, int, float]]:
    """The `number` operations that took most of the CPU's time, the costliest first: name, calls, own seconds.

    events: a profiler's key_averages(). Each event is an operation, and has key, count, cpu_time_total and
    self_cpu_time_total (microseconds of all calls). The own time leaves out the operations that it calls.
    """
    # Gap 5
    ### BEGIN SOLUTION
    ordered = sorted(events, key=lambda event: event.self_cpu_time_total, reverse=True)
    return [(event.key, event.count, event.self_cpu_time_total / 1e6) for event in ordered[:number]]
    ### END SOLUTION


# --- The data: uint8 (N, H, W, C) ---
class EpochBatches:
    """The keys of each batch, for DataLoader's batch_sampler. It runs in the main process, which knows the epoch."""

    def __init__(self, length: int, batch_size: int, seed: int) -> None:
        self.length, self.batch_size, self.seed, self.epoch = length, batch_size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[Key]]:
        order = torch.randperm(self.length, generator=torch.Generator().manual_seed(self.seed + self.epoch))
        for indices in order.split(self.batch_size):
            yield [(self.epoch, index) for index in indices.tolist()]


class SlowImages(Dataset[tuple[torch.Tensor, int]]):
    """One image at a time: DataLoader calls __getitem__ for each key, and makes a batch of the results."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images, self.labels = images, labels

    def __getitem__(self, key: Key) -> tuple[torch.Tensor, int]:
        _, index = key
        image = torch.from_numpy(self.images[index]).permute(2, 0, 1).contiguous()
        image = image.to(torch.float32).div(255)
        image = (image - torch.tensor(MEAN)) / torch.tensor(STD)
        return image, int(self.labels[index])


def draw_shifts(seed: int, epoch: int, indices: np.ndarray, length: int) -> np.ndarray:
    """int64 (B, 2): how many pixels each image is shifted down and right, from -PAD to PAD, all equally likely.

    `length`: of the whole data set. Each epoch has other shifts. They depend on seed, epoch and index alone: not on the
    worker, not on the other examples of the batch, and not on what was drawn before.
    """
    # Gap 6: make a generator. What is its seed? For which examples does it draw?
    ### BEGIN SOLUTION
    generator = np.random.default_rng((seed, epoch))
    return generator.integers(-PAD, PAD + 1, size=(length, 2))[indices]
    ### END SOLUTION


def shifted(images: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """(B, H, W, C): each image shifted by its own (down, right). The pixels that become free are 0."""
    count, height, width, _ = images.shape
    padded = np.pad(images, ((0, 0), (PAD, PAD), (PAD, PAD), (0, 0)))
    rows = PAD - shifts[:, :1] + np.arange(height)
    columns = PAD - shifts[:, 1:] + np.arange(width)
    return padded[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]


class FastImages(Dataset[Batch]):
    """A whole batch at a time: DataLoader calls __getitems__ once, with all keys of a batch.

    Without a seed the batches are those of SlowImages, to the last bit. With a seed each image is shifted first.
    """

    def __init__(self, images: np.ndarray, labels: np.ndarray, seed: int | None = None) -> None:
        self.images, self.labels, self.seed = images, labels, seed

    def __getitems__(self, keys: list[Key]) -> Batch:
        epoch, indices = keys[0][0], np.array([index for _, index in keys])
        # Gap 7: take the images of the batch, as uint8. If there is a seed, shift them. Then do the arithmetic of
        # SlowImages, once for all. No loop over the images.
        ### BEGIN SOLUTION
        images = self.images[indices]
        if self.seed is not None:
            images = shifted(images, draw_shifts(self.seed, epoch, indices, len(self.labels)))
        batch = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
        batch = (batch.to(torch.float32).div(255) - MEAN) / STD
        return batch, torch.from_numpy(self.labels[indices])
        ### END SOLUTION


def unchanged(batch: Batch) -> Batch:
    return batch


def make_loader(dataset: Dataset[Batch], batches: EpochBatches, workers: int, device: torch.device) -> DataLoader:
    """Loads whole batches. With 0 workers this process loads them, else the workers, which stay from epoch to epoch.

    If the device is a GPU, and only then, the batches are in pinned memory: copies to the GPU are faster from there.
    """
    # Gap 8: which options? DataLoader's default collate_fn makes a batch of examples, but __getitems__ returns a batch.
    ### BEGIN SOLUTION
    return DataLoader(
        dataset,
        batch_sampler=batches,
        collate_fn=unchanged,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=device.type == "cuda",
    )
    ### END SOLUTION


# --- Compare ---
def make_step(device: torch.device) -> Callable[[Batch], None]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch: Batch) -> None:
        images, labels = (example.to(device, non_blocking=True) for example in batch)
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def main() -> None:
    torch.set_num_threads(1)  # the worker needs a core too
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    generator = np.random.default_rng(0)
    images = generator.integers(256, size=(EXAMPLES, 28, 28, 1), dtype=np.uint8)
    labels = generator.integers(10, size=EXAMPLES)
    batches, step = EpochBatches(EXAMPLES, BATCH_SIZE, seed=0), make_step(device)
    slow, fast, shifting = SlowImages(images, labels), FastImages(images, labels), FastImages(images, labels, seed=0)
    loaders = {
        "single images": DataLoader(slow, batch_sampler=batches),
        "single images, 1 worker": DataLoader(slow, batch_sampler=batches, num_workers=1),
        "whole batches": make_loader(fast, batches, 0, device),
        "with shifts": make_loader(shifting, batches, 0, device),
        "with shifts, 1 worker": make_loader(shifting, batches, 1, device),
    }
    print("loader                   images/s  waiting")
    measured = {}
    for name, loader in loaders.items():
        measured[name] = times = measure(loader, step, device, WARMUP_STEPS)
        seconds = times.waiting + times.computing
        print(f"{name:<23} {times.images / seconds:10,.0f} {times.waiting / seconds:8.0%}")

    waiting, computing, _ = measured["single images"]
    seconds = waiting + computing
    one, four = (seconds / step_seconds(waiting, computing, workers) for workers in (1, 4))
    print(f"by arithmetic single images become {one:.1f} times as fast with 1 worker,")
    print(f"{four:.1f} times with 4 workers, and {largest_speed_up(waiting / seconds):.1f} times without waiting")

    for name in ("single images", "whole batches"):
        averages = profile_steps(loaders[name], step).key_averages()
        operations = costliest(averages, len(averages))
        total = sum(seconds for _, _, seconds in operations)
        loading = sum(seconds for key, _, seconds in operations if "DataLoader" in key)
        divisions = sum(calls for key, calls, _ in operations if key in ("aten::div", "aten::div_"))
        told = f"{divisions / PROFILE_ACTIVE:.0f} divisions in a step"
        print(f"{name}: {told}, {loading / total:.0%} of the time in DataLoader's own Python")


if __name__ == "__main__":
    main()
