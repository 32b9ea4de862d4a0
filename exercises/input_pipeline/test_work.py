import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

CPU = torch.device("cpu")
IMAGES, LABELS = np.random.default_rng(0).integers(256, size=(53, 5, 7, 3), dtype=np.uint8), np.arange(53) % 10


def test_measured_separately(work):
    """waiting and computing are measured separately"""
    steps, now = [(8, 64.0, 32.0), (8, 16.0, 128.0), (8, 3.0, 1.0), (6, 5.0, 0.5), (3, 0.0, 2.0)], 0.0

    class Batches:  # like a DataLoader, it begins again in each loop
        def __iter__(self):
            nonlocal now
            for number, (images, loading, _) in enumerate(steps):
                now += loading
                yield torch.full((images, 1, 2, 2), number), torch.zeros(images)

    def step(batch):
        nonlocal now
        done.append(int(batch[0].max()))
        now += steps[done[-1]][2]

    work.clock = lambda device: now  # simulated: only loading and computing take time
    for warmup in (2, 0, 9):
        done = []
        found = work.measure(Batches(), step, CPU, warmup)
        assert done == [0, 1, 2, 3, 4], "the batches with which a step was done: where do your loops begin and end?"
        wanted = work.Times(*(sum(step[part] for step in steps[warmup:]) for part in (1, 2, 0)))
        assert found == wanted, f"warmup={warmup}: when is there no batch? which steps count? who reads clock(device)?"


def test_speed_up(work):
    """a better loader saves the waiting, and no more"""
    for share, wanted in ((0.75, 4.0), (0.5, 2.0), (0.2, 1.25), (0.0, 1.0)):
        assert work.largest_speed_up(share) == pytest.approx(wanted), f"{share:.0%} is waiting: how many of 4 s remain?"


def test_overlap(work):
    """workers load while the program computes"""
    for *case, wanted in ((3, 1, 0, 4), (3, 1, 1, 3), (3, 1, 2, 1.5), (3, 1, 8, 1), (0.5, 2, 1, 2)):
        hint = "load {} s, compute {} s, {} worker(s): draw a row for each worker and one for the program".format(*case)
        assert work.step_seconds(*case) == pytest.approx(wanted), hint


def test_active_steps(work):
    """a profile has only the active steps"""
    steps = ("sin", "cos", "tan", "sinh", "cosh", "tanh", "asinh", "atan", "exp2", "expm1", "log2", "log10", "erf")
    batches = ((name, torch.ones(3).neg()) for name in steps)
    profiler = work.profile_steps(batches, lambda batch: getattr(torch, batch[0])(batch[1]))
    recorded = {event.key.removeprefix("aten::") for event in profiler.key_averages()}
    found = [number for number, name in enumerate(steps) if name in recorded]
    assert found == [3, 4, 5, 6, 7], "recorded steps: what do wait, warmup, active, repeat mean? when is a step over?"
    assert "neg" in recorded, "the profile has no operation of the loader: where are the batches loaded?"


def test_own_time(work):
    """operations are ordered by their own time"""
    names = ("key", "count", "self_cpu_time_total", "cpu_time_total")
    costs = (("few", 2, 4e6, 5e6), ("outer", 1, 5e5, 9e6), ("often", 400, 8e6, 8e6), ("slow", 1, 6e6, 7e6))
    found = work.costliest([SimpleNamespace(**dict(zip(names, cost))) for cost in costs], 3)
    assert [name for name, *_ in found] == ["often", "slow", "few"], "which time leaves out what an event calls?"
    assert found[2] == ("few", 2, pytest.approx(4.0)), "name, calls, own seconds: which time, in which unit?"


def test_whole_batches(work):
    """only the images of the batch are copied and made floats, without a loop over them"""
    count, calls = 10**14, []
    same_image = np.broadcast_to(np.uint8(0), (count, 8, 8, 1))  # without memory, and there is none for a copy
    dataset = work.FastImages(same_image, np.broadcast_to(np.int64(1), count))
    dataset.__getitems__([(0, count - 1)])  # imports what it needs
    sys.setprofile(lambda *event: calls.append(event))
    dataset.__getitems__([(0, count - 1)] * 500)
    sys.setprofile(None)
    assert len(calls) < 500, f"{len(calls)} calls and returns of functions for 500 images: what runs once for each?"


def draw(work, seed, epoch, indices, length=5000):
    shifts = work.draw_shifts(seed, epoch, np.array(indices), length)
    assert (shifts.shape, shifts.dtype) == ((len(indices), 2), np.int64), "shape and dtype of the shifts"
    return shifts


def test_shifts(work):
    """all shifts from -PAD to PAD are equally likely, and depend on the seed, the epoch and the index alone"""
    np.random.seed(1)
    shifts = draw(work, 3, 4, range(5000))
    assert np.random.rand() == pytest.approx(0.417022), "the next number of np.random: who else in the program uses it?"
    values, counts = np.unique(shifts, axis=0, return_counts=True)
    assert len(values) == 25, f"different shifts, from {values[0]} to {values[-1]}: does integers() leave out a limit?"
    assert counts.min() > 110 and counts.max() < 300, f"of 5,000 images {counts.min()} to {counts.max()} have a shift"
    for indices in ([7], [299, 0, 7, 8], [5, 5, 6]):
        hint = f"of examples {indices}: which of the generator's numbers belongs to which example?"
        assert draw(work, 3, 4, indices).tolist() == shifts[indices].tolist(), hint
    for one, other in (((3, 4), (3, 5)), ((3, 4), (8, 4)), ((0, 4), (0, 5)), ((3, 0), (8, 0))):
        same = (draw(work, *one, range(300)) == draw(work, *other, range(300))).all(axis=1).mean()
        assert same < 0.2, f"(seed, epoch) {one} and {other}: {same:.0%} of the shifts are equal; by chance it is 4%"


def check_batch(found, wanted, hint):
    for name, ours, right in zip(("images", "labels"), found, wanted, strict=True):
        assert (ours.dtype, ours.shape) == (right.dtype, right.shape), f"dtype and shape of the {name}"
        difference = (ours.double() - right.double()).abs().max().item()
        assert difference == 0, f"the largest difference of the {name}: {hint}"


def test_same_batch(work):
    """a fast batch is the slow one, to the last bit; with a seed, images are shifted first"""
    indices = [3, 39, 3, 0, 17]
    for seed, epoch in ((None, 0), (9, 0), (9, 1), (0, 0)):
        batch = IMAGES[indices]
        batch = batch if seed is None else work.shifted(batch, draw(work, seed, epoch, indices, 53))
        slow = work.SlowImages(batch, LABELS[indices])
        found = work.FastImages(IMAGES, LABELS, seed).__getitems__([(epoch, index) for index in indices])
        hint = f"seed {seed}, epoch {epoch}: are the shifts, the operations, their order and their dtype right?"
        check_batch(found, default_collate([slow[epoch, place] for place in range(5)]), hint)


def test_any_workers(work):
    """batches are the same with any number of workers, which stay, and in pinned memory only if they go to a GPU"""
    dataset, batches = work.FastImages(IMAGES, LABELS, seed=1), work.EpochBatches(53, 8, seed=3)
    for workers in (0, 2):
        loader = work.make_loader(dataset, batches, workers, CPU)
        hint = f"{workers} worker(s) are asked for: which options are their number, and whether they stay?"
        assert (loader.num_workers, loader.persistent_workers) == (workers, workers > 0), hint
        for epoch in (0, 1):
            batches.set_epoch(epoch)
            found, wanted = list(loader), [dataset.__getitems__(keys) for keys in batches]
            assert len(found) == 7, "batches of 53 examples, 8 to a batch: who decides which examples make a batch?"
            for ours, right in zip(found, wanted):
                check_batch(ours, right, f"{workers} worker(s), epoch {epoch}: of which epoch are the keys?")
    devices = map(torch.device, ("cpu", "cuda", "cuda:0"))
    pinned = [work.make_loader(dataset, batches, 0, device).pin_memory for device in devices]
    assert pinned == [False, True, True], "pin_memory for the CPU and for GPUs: where is it useful?"
