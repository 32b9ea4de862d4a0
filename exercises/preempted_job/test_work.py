"""Checks of preempted_job."""

import os
import signal
import time
from functools import partial
from pathlib import Path
from unittest import mock

import torch
import torch._dynamo  # the first optimizer of each process would import it
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import StepLR

from exercises.conftest import check_new_orders

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
IMAGES, LABELS = torch.randn(13, 3, generator=torch.Generator().manual_seed(1)), torch.arange(13) % 2
STARTS = (  # folder, save_every, what comes before which of 12 steps; first step, steps done, status, checkpoints
    ("whole", 5, {}, 0, 12, 0, [10, 12]),
    ("whole", 5, {}, 12, 12, 0, [10, 12]),
    ("killed", 3, {"kill": 7}, 0, 7, "killed", [3, 6]),
    ("killed", 3, {}, 6, 12, 0, [9, 12]),
    ("signals", 5, {"signal to rank 2": 1}, 0, 2, 143, [2]),
    ("signals", 5, {"signal to rank 1": 6, "signal to rank 2": 7}, 2, 7, 143, [5, 7]),
    ("signals", 5, {"signal to rank 0": 8, "signal to rank 1": 8}, 7, 9, 143, [7, 9]),
    ("signals", 5, {"signal to rank 0": 11}, 9, 12, 0, [10, 12]),
)


def checkpoints(folder):
    """The contents of the checkpoints, by number."""
    return {int(path.stem[5:]): path.read_bytes() for path in folder.glob("step-*.pt")}


def make_folder(name, files):
    folder = Path(name).resolve()
    folder.mkdir()
    for file, content in files.items():
        (folder / file).write_bytes(content)
    return folder


def make_training(work, seed, steps=0):
    """With a buffer, which is no parameter, and a rate that is halved after every fourth step."""
    torch.manual_seed(seed)
    model = nn.Linear(3, 2)
    model.register_buffer("mean", torch.randn(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    training = work.Training(model, optimizer, StepLR(optimizer, 4, gamma=0.5))
    for _ in range(steps):
        work.train_step(training, IMAGES, LABELS)
    return training


def state(training):
    return torch.cat([values.flatten() for values in training.model.state_dict().values()])


def test_signals(work, ranks):
    """each signal sets `received`, however often it comes"""

    def receive():
        for number in SIGNALS:
            notice = work.Notice()
            for count in (1, 2):
                signal.raise_signal(number)
                assert notice.received, f"after signal {count}, {number.name}, `received` is {notice.received}"

    ranks(receive, 1)


def test_agreement(work, ranks):
    """if one rank has received a signal, all ranks know"""
    cases = [tuple(bool(case >> rank & 1) for rank in range(3)) for case in range(8)]

    def ask():
        dist.init_process_group("gloo")
        return [bool(work.agreed(flags[dist.get_rank()])) for flags in cases]

    for flags, answers in zip(cases, zip(*ranks(ask, 3)), strict=True):
        assert answers == (any(flags),) * 3, f"the ranks' flags are {flags}: which of them get the call's result?"


def test_sorted_numbers(work):
    """checkpoints are sorted by number, and other files do not count"""
    names = [f"step-{number}.pt" for number in (1000, 9, 100, 10, 99)]
    names += ["unfinished.tmp", "step-12.pt.tmp", "step-13.tmp", "step-a.pt", "last-step-14.pt", "step-15_pt"]
    found = list(work.saved_steps(make_folder("job", dict.fromkeys(names, b""))))
    hint = f"{', '.join(names)}: which names fit your pattern? which one is first as text: 10 or 9?"
    assert found == [9, 10, 99, 100, 1000], hint


def test_saves(work, ranks):
    """rank 0 saves, all ranks wait; the older checkpoints are whole at any moment, and the last two are kept"""
    folder = make_folder(
        "job", dict.fromkeys(("notes.txt", *(f"step-{number}.pt" for number in (2, 3, 4, 50, 60))), b"")
    )

    def save():
        dist.init_process_group("gloo")
        rank = dist.get_rank()

        def rename(source, target, real=os.replace):
            renamed.append(Path(target).name)
            changed = sorted({number for number, _ in before.items() ^ checkpoints(folder).items()})
            assert changed == [], f"new, changed or gone before step-{done}.pt is renamed: what if the job is killed?"
            assert Path(source).resolve().parent == folder, f"{source} is renamed: what if it is on another disk?"
            time.sleep(0.2)  # the other ranks have time to return, which they must not
            real(source, target)

        os.replace = os.rename = rename
        if rank > 0:
            torch.save = mock.Mock(side_effect=AssertionError(f"rank {rank} calls torch.save: which ranks write?"))
        for done, kept in ((8, [4, 8]), (9, [8, 9]), (10, [9, 10]), (10, [9, 10])):  # the last name is taken
            before, renamed, name = checkpoints(folder), [], f"step-{done}.pt"
            dist.barrier()
            work.save(folder, make_training(work, seed=0), done)
            assert (folder / name).exists(), f"{name} is not there when save() returns: which ranks wait, and where?"
            assert renamed == [name][rank:], "names given by a rename: how is a whole file there in one moment?"
            dist.barrier()
            assert sorted(checkpoints(folder)) == kept, (
                f"{sorted(before)} were there, {done} is saved: which ones stay?"
            )
            assert (folder / "notes.txt").exists(), "notes.txt is removed: which files are checkpoints?"

    ranks(save, 3)


def test_comes_back(work, ranks):
    """the latest whole checkpoint comes back in every rank, with weights, momentum, rate and number of steps"""
    made = make_folder("made", {})

    def come_back():
        dist.init_process_group("gloo")
        for done in (9, 10):
            work.save(made, make_training(work, 0, steps=done), done)
        dist.barrier()
        whole, text = checkpoints(made), b"disk quota exceeded"
        cases = [(0, {}), (0, {3: b""}), (10, whole), (9, {**whole, 10: text, 11: b""})]
        cases += [(10, {**whole, 11: damaged}) for damaged in (b"", text, bytes(999), whole[9][:999], whole[9][:-30])]
        for case, (wanted, there) in enumerate(cases):
            files = {f"step-{number}.pt": content for number, content in there.items()}
            folder = make_folder(f"rank-{dist.get_rank()}-{case}", files)
            told = ", ".join(f"{number} {'whole' if number <= wanted else 'damaged'}" for number in there) or "none"
            training, right = make_training(work, seed=3), make_training(work, 0 if wanted else 3, steps=wanted)
            hint = f"checkpoints: {told}: which one is tried after a damaged one, and how many steps are done then?"
            assert work.load_latest(folder, training) == wanted, hint
            assert checkpoints(folder) == there, "a checkpoint is removed or changed: must load_latest do this?"
            for later in range(5):
                away = (state(training) - state(right)).abs().max()
                hint = "what do optimizer and schedule keep?" if later else "which values must each rank load?"
                assert away == 0, f"{later} step(s) after loading the model is {away:.1e} away: {hint}"
                for one in (training, right):
                    work.train_step(one, IMAGES, LABELS)

    ranks(come_back, 3)


def left(work, done, length, epochs, batch_size, seed):
    """The batches after `done` steps."""
    return [batch.tolist() for batch in work.batches(length, work.Plan(epochs, batch_size, 5, seed), done)]


def test_same_batches(work):
    """the batches after k steps are those of a whole training"""
    before = torch.get_rng_state()
    for length, epochs, size in ((13, 3, 4), (12, 3, 4), (5, 2, 8), (7, 2, 1), (21, 2, 8)):
        whole, told = left(work, 0, length, epochs, size, 5), f"{length} examples, {epochs} epochs, batches of {size}"
        sizes = [min(size, length - first) for first in range(0, length, size)] * epochs
        assert [len(batch) for batch in whole] == sizes, f"{told}, their sizes: which batch may be smaller?"
        for done in range(1, len(whole) + 1):
            hint = f"{told}, after {done} steps: in which epoch is it, and how many of its batches are done?"
            assert left(work, done, length, epochs, size, 5) == whole[done:], hint
    assert torch.equal(before, torch.get_rng_state()), "other random numbers change: from which does randperm draw?"


def test_orders(work):
    """every epoch has all examples, in its own order"""
    orders = []
    for seed in (0, 12347, 77):  # no round numbers: seed + 1000 * epoch is right too
        batches = left(work, 0, 50, 4, 16, seed)
        orders += [sum(batches[first : first + 4], []) for first in range(0, 16, 4)]
    assert [sorted(order) for order in orders] == [[*range(50)]] * 12, "the examples of each epoch"
    check_new_orders(orders)


def before_step(coming, steps, done):
    if coming.get("kill") == done:
        raise KeyboardInterrupt
    steps.append(done)
    if coming.get(f"signal to rank {dist.get_rank()}") == done:
        signal.raise_signal(SIGNALS[done % 2])


def test_goes_on(work, ranks):
    """after a signal, or killed, all ranks end after the same step; then they go on, and end with the same weights"""

    def start():
        dist.init_process_group("gloo")
        whole = None
        for name, save_every, coming, first, end, wanted, kept in STARTS:
            folder, steps, training = Path(name), [], make_training(work, seed=first)
            folder.mkdir(exist_ok=True)
            plan, hook = work.Plan(3, 4, save_every, seed=0), partial(before_step, coming, steps)
            try:
                status = work.train(training, IMAGES, LABELS, plan, folder, hook)
            except KeyboardInterrupt:
                status = "killed"
            dist.barrier()  # rank 0 may remove files when the others have returned
            told = f"save_every={save_every}, {coming or 'no signal'}, begun with step {first}"
            hint = f"{told}: from which step does it go on, and after which one must all ranks end?"
            assert steps == [*range(first, end)], hint
            assert sorted(checkpoints(folder)) == kept, f"{told}: after which steps is a checkpoint saved?"
            assert status == wanted, f"{told}: the exit status: is work left?"
            whole = state(training) if whole is None else whole
            away = (state(training) - whole).abs().max() if status == 0 else 0
            assert away == 0, f"{told}: the weights are {away:.1e} away from a whole training's: what does a step read?"

    ranks(start, 3)
