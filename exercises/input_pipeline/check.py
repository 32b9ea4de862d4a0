"""Checks of input_pipeline."""

import contextlib
import inspect
import itertools
import multiprocessing
import os
import random
import signal
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import Dataset, default_collate

from exercises.checking import NotPassedError, check, expect

CPU, GPU = torch.device("cpu"), torch.device("cuda")


class Machine:
    """Its time goes on only by work that is told to take some. Its GPU, if any, runs behind the program."""

    def __init__(self) -> None:
        self.now = self.gpu_done = 100.0

    def work(self, seconds: float) -> None:
        self.now += seconds

    def start(self, seconds: float) -> None:
        self.gpu_done = max(self.gpu_done, self.now) + seconds

    def synchronize(self, *_: object) -> None:
        self.now = max(self.now, self.gpu_done)

    def clocks(self) -> contextlib.ExitStack:
        stack = contextlib.ExitStack()
        for name in ("perf_counter", "monotonic", "time", "process_time"):
            stack.enter_context(mock.patch(f"time.{name}", lambda: self.now))
            stack.enter_context(mock.patch(f"time.{name}_ns", lambda: round(self.now * 1e9)))
        for name in ("torch.cuda.synchronize", "torch.accelerator.synchronize"):
            stack.enter_context(mock.patch(name, self.synchronize))
        return stack


def timed(work: ModuleType, steps: list[tuple[int, float, float]], device: torch.device, warmup: int) -> tuple:
    """What measure() makes of steps of (images, seconds to load them, seconds to compute); the steps that it takes."""
    machine = Machine()
    taken = []

    class Batches:  # like a DataLoader, it begins anew each time
        def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            for number, (images, loading, _) in enumerate(steps):
                machine.work(loading)
                yield torch.full((images, 1, 2, 2), float(number)), torch.zeros(images, dtype=torch.int64)

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        taken.append(int(batch[0][0, 0, 0, 0]))
        seconds = steps[taken[-1]][2]
        if device.type == "cuda":
            machine.work(0.25)
            machine.start(seconds)
        else:
            machine.work(seconds)

    with machine.clocks():
        found = work.measure(Batches(), step, device, warmup)
    return tuple(map(float, found)), taken


def expect_taken(taken: Any, steps: list) -> None:
    wanted = list(range(len(steps)))
    told = f"the batches with which a step was done: yours {taken}, wanted {wanted}"
    expect(taken == wanted, told, "at which batch does each of your loops begin and end?")


SEPARATE = [(8, 64.0, 32.0), (8, 16.0, 128.0), (8, 3.0, 1.0), (6, 5.0, 0.5), (8, 7.0, 4.0), (3, 0.0, 2.0)]
WARMUPS = (2, 0, 4, 9)


@check("waiting and computing are measured separately", "between which two moments does the program have no batch?")
def separately(work: ModuleType) -> object:
    return [timed(work, SEPARATE, CPU, warmup) for warmup in WARMUPS]


@separately.judge
def _(seen: Any) -> None:
    for warmup, (found, taken) in zip(WARMUPS, seen, strict=True):
        expect_taken(taken, SEPARATE)
        wanted = [sum(step[part] for step in SEPARATE[warmup:]) for part in (1, 2, 0)]
        told = f"{len(SEPARATE)} steps with warmup={warmup}, seconds waiting, seconds computing, images"
        told = f"{told}: yours {found}, wanted {wanted}"
        expect(found[2] == wanted[2], told, "which steps are counted? how many images has each of them?")
        expect(found == wanted, told)


OF_GPU = [(4, 2.0, 16.0), (4, 2.0, 8.0), (4, 3.0, 4.0), (2, 1.0, 8.0)]


@check("a GPU's work counts as computing", "is the GPU done when the clock is read?")
def gpu_work(work: ModuleType) -> object:
    return timed(work, OF_GPU, GPU, 1)


@gpu_work.judge
def _(seen: Any) -> None:
    found, taken = seen
    expect_taken(taken, OF_GPU)
    told = "3 steps that start a GPU in 0.25 s for 20 s in all, waiting and computing"
    expect(found[:2] == [6.0, 20.75], f"{told}: yours {found[0]:g} s and {found[1]:g} s, wanted 6 s and 20.75 s")


SHARES = ((0.75, 4.0), (0.5, 2.0), (0.2, 1.25), (0.9, 10.0), (0.0, 1.0))


@check("a better loader saves the waiting, and no more", "the share is 0.75: how many of 4 s remain?")
def speed_up(work: ModuleType) -> object:
    return [work.largest_speed_up(share) for share, _ in SHARES]


@speed_up.judge
def _(seen: Any) -> None:
    for (share, wanted), found in zip(SHARES, seen, strict=True):
        told = f"{share:.0%} of the time is waiting: yours {found:g} times as fast, wanted {wanted:g} times"
        expect(abs(found - wanted) < 1e-9, told)


# Seconds to load and to compute, number of workers, seconds of a step.
OVERLAPS = (
    (3.0, 1.0, 0, 4.0),
    (3.0, 1.0, 1, 3.0),
    (3.0, 1.0, 2, 1.5),
    (3.0, 1.0, 3, 1.0),
    (3.0, 1.0, 8, 1.0),
    (0.5, 2.0, 0, 2.5),
    (0.5, 2.0, 1, 2.0),
    (6.0, 0.25, 4, 1.5),
)


@check("workers load while the program computes", "draw a row for each worker and one for the program: who does what?")
def overlapped(work: ModuleType) -> object:
    return [work.step_seconds(data, compute, workers) for data, compute, workers, _ in OVERLAPS]


@overlapped.judge
def _(seen: Any) -> None:
    for (data, compute, workers, wanted), found in zip(OVERLAPS, seen, strict=True):
        told = f"load {data:g} s, compute {compute:g} s, number of workers {workers}"
        expect(abs(found - wanted) < 1e-9, f"{told}: yours {found:g} s a step, wanted {wanted:g} s")


# Another operation in each step of a profile.
OPERATIONS = ("sin", "cos", "tan", "sinh", "cosh", "tanh", "asinh", "atan", "exp2", "expm1", "log2", "log10", "erf")
SIZES = [2 + number % 3 for number in range(len(OPERATIONS))]


@check("a profile has only the active steps", "what do wait, warmup, active and repeat mean? when is a step over?")
def active_steps(work: ModuleType) -> object:
    done = []

    def step(batch: torch.Tensor) -> None:
        for _ in range(batch.numel()):
            getattr(torch, OPERATIONS[len(done)])(torch.ones(3))
        done.append(batch)

    batches = (torch.ones(size).neg() for size in SIZES)
    events = work.profile_steps(batches, step).key_averages()
    counts = {event.key: event.count for event in events}
    found = {name: counts[f"aten::{name}"] for name in OPERATIONS if f"aten::{name}" in counts}
    return found, work.PROFILE_WAIT + work.PROFILE_WARMUP, work.PROFILE_ACTIVE, counts.get("aten::neg", 0)


@active_steps.judge
def _(seen: Any) -> None:
    found, first, count, loaded = seen
    active = range(first, first + count)
    wanted = {OPERATIONS[number]: SIZES[number] for number in active}
    recorded = sorted(OPERATIONS.index(name) for name in found)
    told = f"the steps whose operations were recorded, from 0: yours {recorded}, wanted {list(active)}"
    expect(found.keys() == wanted.keys(), told)
    expect(found == wanted, f"recorded operations: yours {sum(found.values())}, wanted {sum(wanted.values())}")
    expect(loaded > 0, "the profile has no operation of the loader", "where are the batches loaded?")


def event(key: str, count: int, own: float, whole: float) -> SimpleNamespace:
    """As key_averages() returns one; microseconds."""
    times = {"cpu_time_total": whole, "self_cpu_time_total": own, "cpu_time": whole / count}
    return SimpleNamespace(key=key, name=key, count=count, self_cpu_time=own / count, **times)


COSTS = [
    ("few", 2, 4e6, 5e6),
    ("outer", 1, 5e5, 9e6),
    ("often", 400, 8e6, 8e6),
    ("slow", 1, 6e6, 7e6),
    ("alike", 3, 1e6, 1e6),
]
NUMBERS = (5, 9, 3, 1)


@check("operations are ordered by their own time", "which of an event's times leaves out the operations it calls?")
def own_time(work: ModuleType) -> object:
    costliest = []
    for number in NUMBERS:
        found = work.costliest((event(*cost) for cost in COSTS), number)
        costliest.append([(key, int(calls), round(float(own), 9)) for key, calls, own in found])
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        torch.ones(3).sin()
    return costliest, [key for key, _, _ in work.costliest(profiler.key_averages(), 1000)]


@own_time.judge
def _(seen: Any) -> None:
    costliest, of_profile = seen
    wanted = [["often", 400, 8.0], ["slow", 1, 6.0], ["few", 2, 4.0], ["alike", 3, 1.0], ["outer", 1, 0.5]]
    for number, found in zip(NUMBERS, costliest, strict=True):
        told = f"the costliest {number}, of 5: yours {found}, wanted {wanted[:number]}"
        names, right = ([key for key, *_ in one] for one in (found, wanted[:number]))
        other = "which come first, the order or the cut?" if number < 5 else "which operations do you leave out?"
        expect(sorted(names) == sorted(right), told, other)
        expect(names == right, told)
        expect(found == wanted[:number], told, "which time of an event is it? in which unit?")
    expect("aten::sin" in of_profile, f"the profile has aten::sin, but the list lacks it: {of_profile[:5]}")


def make_images(count: int, shape: tuple[int, ...], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.integers(256, size=(count, *shape), dtype=np.uint8), generator.integers(10, size=count)


def contents(batch: Any) -> list[tuple[str, list[int], Any]]:
    """The dtype, shape and values of a batch's images and labels."""
    tensors = map(torch.as_tensor, batch)
    return [(str(tensor.dtype), list(tensor.shape), tensor) for tensor in tensors]


def expect_same(told: str, found: Any, wanted: Any, hint: str = "") -> None:
    """For judges: the contents of two batches must be equal."""
    for name, (dtype, shape, values), (right_dtype, right_shape, right) in zip(
        ("images", "labels"), found, wanted, strict=True
    ):
        expect(dtype == right_dtype, f"{told}: dtype of the {name}: yours {dtype}, wanted {right_dtype}")
        expect(shape == right_shape, f"{told}: shape of the {name}: yours {shape}, wanted {right_shape}", PLACES)
        if values != right:
            ours, others = (np.array(one, float).ravel() for one in (values, right))
            away = np.abs(ours - others)
            seen = f"{told}: {(away > 0).mean():.0%} of the numbers of the {name} differ, by {away.max():.1e} at most"
            only_moved = away.max() > 0.01 and np.allclose(np.sort(ours), np.sort(others))
            raise NotPassedError(seen, hint or (PLACES if only_moved else ""))


PLACES = "is each image in its place in the batch, and each pixel in its place in the image?"
# The number of images and their shape; the epoch and the size of a batch.
SETS = ((20, (5, 7, 3)), (64, (28, 28, 1)), (9, (6, 4, 2)))
BATCHES = ((0, 8), (3, 1), (1, 5), (0, None))


@check(
    "a fast batch is the slow one, to the last bit",
    "are the operations and their order those of SlowImages? in which dtype?",
)
def same_batch(work: ModuleType) -> object:
    seen = []
    for count, shape in SETS:
        images, labels = make_images(count, shape, seed=count)
        slow, fast = work.SlowImages(images, labels), work.FastImages(images, labels)
        generator, pairs = np.random.default_rng(1), []
        for epoch, size in BATCHES:
            keys = [(epoch, int(index)) for index in generator.integers(count, size=size or count)]
            right = default_collate([slow[key] for key in keys])
            pairs.append((contents(fast.__getitems__(keys)), contents(right)))
        seen.append((pairs, images))
    return seen


@same_batch.judge
def _(seen: Any) -> None:
    for (count, shape), (pairs, images) in zip(SETS, seen, strict=True):
        for (_, size), (found, wanted) in zip(BATCHES, pairs, strict=True):
            expect_same(f"a batch of {size or count} of {count} images of shape {shape}", found, wanted)
        same = images == make_images(count, shape, seed=count)[0].tolist()
        expect(same, "the data set itself was changed", "which arrays does your arithmetic write to?")


@check(
    "only the images of the batch are copied and made floats",
    "which comes first: taking the images of the batch, or converting?",
)
def chosen_first(work: ModuleType) -> object:
    keys = [(0, 5), (0, 19_999)]
    dataset, other, first = (work.FastImages(*make_images(20_000, (8, 8, 1))) for _ in range(3))
    first.__getitems__(keys)  # imports what it needs
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        dataset.__getitems__(keys)
    tracemalloc.start()  # knows NumPy's arrays, and the profiler knows PyTorch's tensors
    other.__getitems__(keys)
    _, of_numpy = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return max([of_numpy, *(event.self_cpu_memory_usage for event in profiler.events())])


@chosen_first.judge
def _(most: Any) -> None:
    told = f"a batch of 2 images of 64 bytes takes {most:,} bytes"
    expect(most < 640_000, f"{told}; all 20,000 images have 1,280,000")


def instructions(dataset: Any, size: int) -> int:
    """How many instructions of Python it takes to make a batch of so many."""
    count = 0

    def trace(frame: FrameType, kind: str, _: object) -> Any:
        nonlocal count
        count += kind == "opcode"
        # f_trace first: from Python 3.13 on, only a frame that is traced can be traced by instruction.
        frame.f_trace, frame.f_trace_opcodes, frame.f_trace_lines = trace, True, False
        return trace

    keys = [(0, index) for index in range(size)]
    dataset.__getitems__(keys)  # the first time imports what it needs
    this = inspect.currentframe()
    assert this
    this.f_trace_opcodes = True  # Python 3.12 needs this before settrace
    sys.settrace(trace)
    try:
        dataset.__getitems__(keys)
    finally:
        sys.settrace(None)
    return count


@check("there is no loop over the images", "which line runs once for each image?")
def whole_batch(work: ModuleType) -> object:
    dataset = work.FastImages(*make_images(600, (4, 4, 1)))
    return instructions(dataset, 40), instructions(dataset, 540)


@whole_batch.judge
def _(seen: Any) -> None:
    few, many = seen
    more = (many - few) / 500
    told = f"Python executes {more:.0f} instructions for each image"
    expect(more < 20, f"{told}, and only the list of the keys needs some (7 or 8)")


def draw(work: ModuleType, seed: int, epoch: int, indices: Any, length: int) -> dict[str, Any]:
    found = np.asarray(work.draw_shifts(seed, epoch, np.array(indices), length))
    return {"shape": list(found.shape), "kind": found.dtype.kind, "dtype": str(found.dtype), "values": found}


def shifts(drawn: Any, count: int) -> np.ndarray:
    """The shifts that were drawn for so many indices."""
    expect(drawn["shape"] == [count, 2], f"the shape of the shifts: yours {drawn['shape']}, wanted {[count, 2]}")
    expect(drawn["kind"] == "i", f"the dtype of the shifts: yours {drawn['dtype']}, wanted int64")
    return np.array(drawn["values"], int).reshape(count, 2)


@check("all shifts from -PAD to PAD are equally likely", "which of its two limits does integers() leave out?")
def all_shifts(work: ModuleType) -> object:
    return work.PAD, [draw(work, seed, epoch, range(5000), 5000) for seed, epoch in ((0, 0), (5, 2))]


@all_shifts.judge
def _(seen: Any) -> None:
    pad, both = seen
    for _, drawn in zip(range(2), both, strict=True):
        found = Counter(map(tuple, shifts(drawn, 5000).tolist()))
        wanted = {(down, right) for down in range(-pad, pad + 1) for right in range(-pad, pad + 1)}
        missing, more = sorted(wanted - set(found)), sorted(set(found) - wanted)
        expect(not more, f"some images were shifted by {more[:3]}")
        few = len(found) <= 2 * pad + 1
        told = f"of 5,000 images none was shifted by {missing[:3]}"
        expect(not missing, told, "for how many images and directions is a number drawn?" if few else "")
        (often, most), *_, (seldom, least) = found.most_common()
        told = f"{most} of 5,000 images were shifted by {often}, and {least} by {seldom}"
        expect(most < 300 and least > 110, told, "which numbers become -PAD, and which become 0?")


DRAWN = tuple(itertools.product((3, 8, 0), (4, 5, 0)))  # seeds and epochs of `anew`


@check("each seed and each epoch has other shifts", "on what do the numbers depend? is any kept from another call?")
def anew(work: ModuleType) -> object:
    return [draw(work, seed, epoch, range(2000), 2000) for seed, epoch in DRAWN]


@anew.judge
def _(seen: Any) -> None:
    found = [(*key, shifts(drawn, 2000)) for key, drawn in zip(DRAWN, seen, strict=True)]
    for (seed, epoch, one), (other_seed, other_epoch, other) in itertools.combinations(found, 2):
        if seed != other_seed and epoch != other_epoch:
            continue  # the sum of seed and epoch is right, too
        for offset in (0, 1, -1, 5):
            same = (np.roll(other, offset, axis=0) == one).all(axis=1).mean()
            told = f"seed {seed}, epoch {epoch}, and seed {other_seed}, epoch {other_epoch}: {same:.0%} of the shifts"
            where = f", {abs(offset)} images further" if offset else ""
            expect(same < 0.1, f"{told} are the same{where}; by chance it is 4%")


# Of a data set of so many examples, those whose shifts are drawn.
PARTS_OF = {
    length: ([7], [length - 1, 0, 7, 8], [5, 5, 6], list(range(299, -1, -1)), list(range(100, 160)), [7])
    for length in (300, 30_000)
}


@check("an example's shift does not depend on the batch", "which of the generator's numbers belongs to which example?")
def by_index(work: ModuleType) -> object:
    return [
        [draw(work, 1, 2, indices, length) for indices in (range(length), *PARTS_OF[length])] for length in PARTS_OF
    ]


@by_index.judge
def _(seen: Any) -> None:
    for (length, parts), (all_drawn, *drawn) in zip(PARTS_OF.items(), seen, strict=True):
        whole = shifts(all_drawn, length)
        for indices, one in zip(parts, drawn, strict=True):
            told = f"the shifts of examples {str(indices[:4])[1:-1]}{'...' if len(indices) > 4 else ''}"
            same = np.array_equal(shifts(one, len(indices)), whole[indices])
            expect(same, f"{told} are not those that they have when all {length:,} are drawn")


def states() -> list[str]:
    """Of the generators that a whole program shares."""
    return [str(random.getstate()), str(np.random.get_state(legacy=False)), str(torch.get_rng_state().tolist())]


@check("the shifts have a generator of their own", "who else in the program uses np.random or torch.manual_seed?")
def own_generator(work: ModuleType) -> object:
    drawn, changed = [], False
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        before = states()
        drawn.append(draw(work, 0, 0, range(50), 50))
        changed |= states() != before
    return drawn, changed


@own_generator.judge
def _(seen: Any) -> None:
    drawn, changed = seen
    expect(changed is False, "drawing shifts changes the state of a generator that the whole program uses")
    first, second = (shifts(epoch, 50) for epoch in drawn)
    expect(np.array_equal(first, second), "the shifts depend on a generator that the whole program uses")


INDICES = [3, 39, 3, 0, 17, 21, 8]
# Seeds and epochs of `shifted_batch`, each with a hint.
SEEDS = ((9, 0, ""), (9, 1, "of which epoch are the shifts?"), (0, 0, "is 0 a seed?"))


def moved(image: np.ndarray, down: int, right: int) -> np.ndarray:
    """The image, pixel by pixel further down and to the right; what comes in is 0."""
    found = np.zeros_like(image)
    height, width, _ = image.shape
    for row, column in itertools.product(range(height), range(width)):
        if 0 <= row - down < height and 0 <= column - right < width:
            found[row, column] = image[row - down, column - right]
    return found


@check(
    "with a seed, images are shifted, then normalised",
    "which seed do the shifts have? 0 is black in uint8: what is 0 after normalising?",
)
def shifted_batch(work: ModuleType) -> object:
    images, labels = make_images(40, (6, 5, 2))
    seen = []
    for seed, epoch, _ in SEEDS:
        drawn = draw(work, seed, epoch, INDICES, 40)
        # As many images as indices, each moved by its shift: SlowImages normalises them.
        slow = [
            work.SlowImages(moved(images[index], *shift)[None], labels[index : index + 1])[epoch, 0]
            for index, shift in zip(INDICES, np.asarray(drawn["values"]).reshape(-1, 2).tolist(), strict=True)
        ]
        dataset = work.FastImages(images, labels, seed)
        found = [contents(dataset.__getitems__([(epoch, index) for index in INDICES])) for _ in range(2)]
        seen.append((drawn, found, contents(default_collate(slow))))
    return seen


@shifted_batch.judge
def _(seen: Any) -> None:
    for (seed, epoch, hint), (drawn, batches, wanted) in zip(SEEDS, seen, strict=True):
        shifts(drawn, len(INDICES))
        for _, found in zip(range(2), batches, strict=True):
            expect_same(f"seed {seed}, epoch {epoch}", found, wanted, hint)


@contextlib.contextmanager
def workers_allowed() -> Iterator[None]:
    """Lets this process start workers. They are copies of it, and so have the work."""
    if "fork" in multiprocessing.get_all_start_methods():
        multiprocessing.set_start_method("fork", force=True)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else DataLoader calls the end of its workers an error
        for process in multiprocessing.active_children():
            process.kill()


@check(
    "the batches are the same with any number of workers",
    "which options of the DataLoader are for workers? which one is for making a batch?",
)
def any_workers(work: ModuleType) -> object:
    images, labels = make_images(53, (5, 4, 1))
    slow, batches, seen = work.SlowImages(images, labels), work.EpochBatches(53, 8, seed=3), []
    with workers_allowed():
        for workers in (0, 1, 2):
            plain = work.make_loader(work.FastImages(images, labels), batches, workers, CPU)
            shifted = work.FastImages(images, labels, seed=1)
            shifting = work.make_loader(shifted, batches, workers, CPU)
            for epoch in (0, 1, 4):
                batches.set_epoch(epoch)
                keys = list(batches)
                for loader, wanted in (
                    (plain, [default_collate([slow[key] for key in some]) for some in keys]),
                    (shifting, [shifted.__getitems__(some) for some in keys]),
                ):
                    seen.append((workers, epoch, list(map(contents, loader)), list(map(contents, wanted))))
    return seen


@any_workers.judge
def _(seen: Any) -> None:
    for _, (workers, epoch, found, wanted) in zip(range(18), seen, strict=True):
        told = f"epoch {epoch}, {workers} workers"
        count = f"{told}: batches of 53 examples, 8 to a batch: yours {len(found)}, wanted 7"
        expect(len(found) == 7, count, "who decides which examples make a batch?")
        for number, pair in enumerate(zip(found, wanted, strict=True)):
            expect_same(f"{told}, batch {number}", *pair, "of which epoch are the loader's keys?" if epoch else "")


class Where(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Batches that hold the number of the process that has loaded them."""

    def __getitems__(self, keys: list) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((len(keys), 1), os.getpid()), torch.tensor([index for _, index in keys])


@check("the workers stay from epoch to epoch", "which option of DataLoader keeps them?")
def workers_stay(work: ModuleType) -> object:
    batches, seen = work.EpochBatches(30, 4, seed=0), []
    with workers_allowed():
        for workers in (0, 1, 3):
            loader = work.make_loader(Where(), batches, workers, CPU)
            seen.append([{int(place) for places, _ in loader for place in places.flatten()} for _ in range(2)])
    return os.getpid(), seen


@workers_stay.judge
def _(seen: Any) -> None:
    here, loaders = seen
    number = "which option is the number of workers?"
    for workers, (first, second) in zip((0, 1, 3), loaders, strict=True):
        told = f"with {workers} workers"
        count = len(set(first) - {here})
        expect(count == workers, f"{told}, processes that load for this one: yours {count}, wanted {workers}", number)
        expect(bool(workers) != (here in first), f"{told}, this process loads batches itself", number)
        expect(first == second, f"{told}, the next epoch has new ones")


@check("batches are in pinned memory only if they go to a GPU", "on which device is pinned memory useful?")
def pinned(work: ModuleType) -> object:
    dataset, batches, seen = work.FastImages(*make_images(8, (4, 4, 1))), work.EpochBatches(8, 4, seed=0), []
    for device in (CPU, GPU, torch.device("cuda:0")):
        for workers in (0, 2):
            with mock.patch("torch.cuda.is_available", return_value=True):  # a machine with a GPU may train on its CPU
                loader = work.make_loader(dataset, batches, workers, device)
            seen.append((str(device), workers, getattr(loader, "pin_memory", None)))
    return seen


@pinned.judge
def _(seen: Any) -> None:
    for _, (device, workers, pins) in zip(range(6), seen, strict=True):
        told = f"for the device {device}, with {workers} workers, pin_memory: yours {pins}, wanted {device != 'cpu'}"
        expect(pins == (device != "cpu"), told, "is a GPU with a number a GPU?" if ":" in device else "")
