"""The input pipeline: where the time of a step goes, and from one image at a time to whole batches.

python -m exercises.input_pipeline.exercise
"""

import math
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
PAD = 2  # pixels by which an image is shifted at most
PROFILE_WAIT, PROFILE_WARMUP, PROFILE_ACTIVE = 2, 1, 5  # steps of a profile


# --- Where the time goes ---


def clock(device: torch.device) -> float:
    """Seconds, read when the device has done all it was given (see the activity one_device)."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class Times(NamedTuple):
    waiting: float  # seconds until the batches were there
    computing: float  # seconds of the steps with them
    images: int


def measure(batches: Iterable[Batch], step: Callable[[Batch], None], device: torch.device, warmup: int) -> Times:
    """Takes a step with each batch, and adds up the times; the first `warmup` steps do not count."""
    # Gap 1: read the clock when a batch is there, and when the step with it is done.
    raise NotImplementedError("gap 1")


def largest_speed_up(share: float) -> float:
    """By what factor training becomes faster if data take no time, and now take `share` (below 1) of the time."""
    # Gap 2
    raise NotImplementedError("gap 2")


def step_seconds(data: float, compute: float, workers: int) -> float:
    """Seconds for a step, after the first ones, if loading its batch takes `data` seconds and computing `compute`.

    Without workers one comes after the other. Each worker loads a batch of its own, on a core of its own, while the
    program computes.
    """
    # Gap 3
    raise NotImplementedError("gap 3")


def profile_steps(batches: Iterable[Batch], step: Callable[[Batch], None]) -> profile:
    """Takes steps under torch.profiler, and returns the profiler, which has recorded PROFILE_ACTIVE steps.

    PROFILE_WAIT steps come first without it; then in PROFILE_WARMUP steps it runs, but keeps nothing. Later steps, if
    there are more batches, are not recorded.
    """
    # Gap 4: what tells the profiler that a step is over?
    raise NotImplementedError("gap 4")


def costliest(events: Iterable, number: int) -> list[tuple[str, int, float]]:
    """Of the operations that took most: name, calls, and own seconds on the CPU over all calls; the costliest first.

    `events`: what a profiler's key_averages() returns, one for each operation: key, count, and times in microseconds.
    An operation's own time is without the operations that it calls.
    """
    # Gap 5: print one of the events' table() to see which times there are.
    raise NotImplementedError("gap 5")


# --- The data: uint8 (N, H, W, C) ---


class EpochBatches:
    """The keys of each batch, as DataLoader's batch_sampler. Runs in the main process, so that it knows the epoch."""

    def __init__(self, length: int, batch_size: int, seed: int) -> None:
        self.length, self.batch_size, self.seed = length, batch_size, seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return math.ceil(self.length / self.batch_size)

    def __iter__(self) -> Iterator[list[Key]]:
        order = torch.randperm(self.length, generator=torch.Generator().manual_seed(self.seed + self.epoch)).tolist()
        for first in range(0, self.length, self.batch_size):
            yield [(self.epoch, index) for index in order[first : first + self.batch_size]]


class SlowImages(Dataset[tuple[torch.Tensor, int]]):
    """One image at a time: DataLoader calls __getitem__ for each key, and stacks what it returns."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images, self.labels = images, labels

    def __getitem__(self, key: Key) -> tuple[torch.Tensor, int]:
        _, index = key
        image = torch.from_numpy(self.images[index]).permute(2, 0, 1).contiguous()
        image = image.to(torch.float32).div(255)
        image = (image - torch.tensor(MEAN)) / torch.tensor(STD)
        return image, int(self.labels[index])


def draw_shifts(seed: int, epoch: int, indices: np.ndarray, length: int) -> np.ndarray:
    """int64 (B, 2): by how many pixels each image is shifted down and right, from -PAD to PAD, all equally likely.

    `length`: of the whole data set. Each epoch draws anew. The numbers depend on seed, epoch and index alone: not on
    which worker draws them, on which examples are in the batch, or on what was drawn before.
    """
    # Gap 6: a generator of its own: from what, and for which examples does it draw?
    raise NotImplementedError("gap 6")


def shifted(images: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """(B, H, W, C): each image shifted by its own (down, right), with zeros where nothing was."""
    count, height, width, _ = images.shape
    padded = np.pad(images, ((0, 0), (PAD, PAD), (PAD, PAD), (0, 0)))
    rows = PAD - shifts[:, :1] + np.arange(height)
    columns = PAD - shifts[:, 1:] + np.arange(width)
    return padded[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]


class FastImages(Dataset[Batch]):
    """A whole batch at a time: DataLoader calls __getitems__ once with all keys of a batch.

    Without a seed the batches are those of SlowImages, to the last bit. With one, each image is shifted first.
    """

    def __init__(self, images: np.ndarray, labels: np.ndarray, seed: int | None = None) -> None:
        self.images, self.labels, self.seed = images, labels, seed

    def __getitems__(self, keys: list[Key]) -> Batch:
        epoch, indices = keys[0][0], np.array([index for _, index in keys])
        # Gap 7: gather the batch as uint8; shift it, if there is a seed; then the arithmetic of SlowImages, once for
        # all. No loop over the images.
        raise NotImplementedError("gap 7")


def unchanged(batch: Batch) -> Batch:
    return batch


def make_loader(dataset: Dataset[Batch], batches: EpochBatches, workers: int, device: torch.device) -> DataLoader:
    """Loads whole batches, in this process (0 workers) or in others, which stay from epoch to epoch.

    Where the device is a GPU, batches lie in pinned memory, from which it copies faster.
    """
    # Gap 8: which options? __getitems__ returns a batch that is complete: what is to be done with it?
    raise NotImplementedError("gap 8")


# --- Slow against fast ---


def make_step(device: torch.device) -> Callable[[Batch], None]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(),
        *(nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()),
        nn.Linear(256, 10),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch: Batch) -> None:
        images, labels = (one.to(device, non_blocking=True) for one in batch)
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
    batches = EpochBatches(EXAMPLES, BATCH_SIZE, seed=0)
    slow, plain, shifting = SlowImages(images, labels), FastImages(images, labels), FastImages(images, labels, seed=0)
    loaders = {
        "one image at a time": DataLoader(slow, batch_sampler=batches),
        "the same, 1 worker": DataLoader(slow, batch_sampler=batches, num_workers=1),
        "whole batches": make_loader(plain, batches, 0, device),
        "with shifts": make_loader(shifting, batches, 0, device),
        "with shifts, 1 worker": make_loader(shifting, batches, 1, device),
    }
    one, fast = loaders["one image at a time"], loaders["whole batches"]
    pairs = [pair for batches in zip(one, fast, strict=True) for pair in zip(*batches, strict=True)]
    same = all(torch.equal(values, others) for values, others in pairs)
    print(f"{len(one)} batches, {'the same' if same else 'NOT the same'} in both ways")

    step = make_step(device)
    found = {}
    print("loader                 images/s  waiting")
    for name, loader in loaders.items():
        found[name] = times = measure(loader, step, device, WARMUP_STEPS)
        seconds = times.waiting + times.computing
        print(f"{name:<21} {times.images / seconds:9,.0f} {times.waiting / seconds:8.0%}")
    waiting, computing, _ = found["one image at a time"]
    limit = largest_speed_up(waiting / (waiting + computing))
    factors = [(waiting + computing) / step_seconds(waiting, computing, workers) for workers in (1, 4)]
    print(f"one image at a time: without waiting it would be {limit:.1f} times as fast,")
    print("with 1 worker on a core of its own {:.1f} times, with 4 workers {:.1f} times".format(*factors))

    for name, loader in (("one image at a time", one), ("whole batches", fast)):
        averages = profile_steps(loader, step).key_averages()
        operations = costliest(averages, len(averages))
        if loader is one:
            costly = operations[0][0]
            print(f"costliest operation: {costly.partition('#')[0]}")
        total = sum(seconds for _, _, seconds in operations)
        ((calls, share),) = ((calls, seconds / total) for key, calls, seconds in operations if key == costly)
        (divisions,) = (calls for key, calls, _ in operations if key == "aten::div")
        told = f"{share:.0%} of the time in {calls} calls; {divisions / calls:.0f} calls of aten::div in a step"
        print(f"{name}: {told}")


if __name__ == "__main__":
    main()
