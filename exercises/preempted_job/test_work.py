import os
import signal
import time
from functools import partial
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import StepLR

from exercises.conftest import check_near, make_batch, make_linear

IMAGES, LABELS = make_batch(13)
STARTS = (  # folder, what comes before which of 12 steps; first step, steps done, status, checkpoints
    ("whole", {}, 0, 12, 0, [10, 12]),
    ("job", {"kill": 7}, 0, 7, "killed", [5]),
    ("job", {"signal to rank 2": 6}, 5, 7, 143, [5, 7]),
    ("job", {"signal to rank 0": 8, "signal to rank 1": 8}, 7, 9, 143, [7, 9]),
    ("job", {"signal to rank 0": 11}, 9, 12, 0, [10, 12]),
    ("job", {}, 12, 12, 0, [10, 12]),
)


def checkpoints(folder):
    return sorted(int(path.stem[5:]) for path in folder.glob("step-*.pt"))


def make_training(work, seed, steps=0):
    """With a buffer, which is no parameter, and a rate that is halved after every fourth step."""
    model = make_linear(seed=seed)
    model.register_buffer("mean", torch.randn(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    training = work.Training(model, optimizer, StepLR(optimizer, 4, gamma=0.5))
    for _ in range(steps):
        work.train_step(training, IMAGES, LABELS)
    return training


def check_same(what, training, other, hint):
    check_near(what, training.model.state_dict().values(), other.model.state_dict().values(), hint, limit=0)


def test_agreement(work, ranks):
    """a signal to one rank sets `received` there, and all ranks know"""

    def receive():
        answers = []
        for number in (None, signal.SIGTERM, signal.SIGUSR1):
            notice = work.Notice()
            if number and dist.get_rank() == 1:
                signal.raise_signal(number)
            answers.append((notice.received, bool(work.agreed(notice.received))))
        return answers

    hint = "`received` and agreed() in two ranks; rank 1 gets no signal, then SIGTERM, then SIGUSR1: who learns of it?"
    wanted = [[(False, False), (False, True), (False, True)], [(False, False), (True, True), (True, True)]]
    assert ranks(receive, 2) == wanted, hint


def test_sorted_numbers(work):
    """checkpoints are sorted by number, and other files do not count"""
    names = [f"step-{number}.pt" for number in (1000, 9, 100, 10, 99)]
    names += ["unfinished.tmp", "step-12.pt.tmp", "step-a.pt", "last-step-14.pt", "step-15_pt"]
    for name in names:
        Path(name).touch()
    hint = f"{', '.join(names)}: which names fit your pattern? which one is first as text: 10 or 9?"
    assert list(work.saved_steps(Path.cwd())) == [9, 10, 99, 100, 1000], hint


def test_saves(work, ranks):
    """rank 0 saves, all ranks wait; the older checkpoints stay until the new one is whole, and the last two are kept"""
    folder = Path.cwd()
    for name in ("notes.txt", "step-3.pt", "step-4.pt", "step-50.pt"):
        Path(name).touch()

    def save():
        rank = dist.get_rank()

        def rename(source, target, real=os.replace):
            renamed.append(Path(target).name)
            assert checkpoints(folder) == before, "checkpoints before the rename: what if the job is killed?"
            assert Path(source).resolve().parent == folder, f"{source} is renamed: what if it is on another disk?"
            time.sleep(0.2)  # the other ranks have time to return, which they must not
            real(source, target)

        os.replace = os.rename = rename
        if rank > 0:
            torch.save = mock.Mock(side_effect=AssertionError(f"rank {rank} calls torch.save: which ranks write?"))
        for done, kept in ((8, [4, 8]), (9, [8, 9]), (9, [8, 9])):  # the last name is taken
            before, renamed, name = checkpoints(folder), [], f"step-{done}.pt"
            dist.barrier()
            work.save(folder, make_training(work, seed=0), done)
            assert Path(name).exists(), f"{name} is not there when save() returns: which ranks wait, and where?"
            assert renamed == [name][rank:], "names given by a rename: how is a whole file there in one moment?"
            dist.barrier()
            assert checkpoints(folder) == kept, f"{before} were there, {done} is saved: which ones stay?"
        assert Path("notes.txt").exists(), "notes.txt is removed: which files are checkpoints?"

    ranks(save, 3)


def test_comes_back(work, ranks):
    """the latest whole checkpoint comes back in every rank, with weights, momentum, rate and number of steps"""

    def come_back():
        folder = Path.cwd()
        for done in (9, 10):
            work.save(folder, make_training(work, 0, steps=done), done)
        dist.barrier()
        whole = Path("step-10.pt").read_bytes()
        later = {11: b"", 12: b"disk quota exceeded", 13: whole[:999]}
        for damaged, wanted in (({}, 10), (later, 10), ({10: whole[:-30]}, 9), ({9: b""}, 0)):
            if dist.get_rank() == 0:
                for number, content in damaged.items():
                    Path(f"step-{number}.pt").write_bytes(content)
            dist.barrier()
            training, right = make_training(work, seed=3), make_training(work, 0 if wanted else 3, steps=wanted)
            hint = f"checkpoints: {checkpoints(folder)}, whole up to {wanted}: which one follows a damaged one?"
            assert work.load_latest(folder, training) == wanted, hint
            for steps in range(5):
                hint = "what do optimizer and schedule keep?" if steps else "which values must each rank load?"
                check_same(f"a number of the model, {steps} step(s) after loading,", training, right, hint)
                for one in (training, right):
                    work.train_step(one, IMAGES, LABELS)
        assert checkpoints(folder) == [9, 10, *later], "the checkpoints afterwards: must load_latest remove any?"

    ranks(come_back, 2)


def test_same_batches(work):
    """the batches after k steps are those of a whole training, and every epoch has its own order"""

    def left(done, length, seed=5):
        return [batch.tolist() for batch in work.batches(length, work.Plan(3, 16, 5, seed), done)]

    before = torch.get_rng_state()
    for length, sizes in ((50, [16, 16, 16, 2]), (48, [16, 16, 16]), (5, [5])):
        whole, told = left(0, length), f"{length} examples, 3 epochs, batches of 16"
        assert [len(batch) for batch in whole] == sizes * 3, f"{told}, their sizes: which batch may be smaller?"
        for done in range(1, len(whole) + 1):
            hint = f"{told}, after {done} steps: in which epoch is it, and how many of its batches are done?"
            assert left(done, length) == whole[done:], hint
    batches = left(0, 48) + left(0, 48, seed=77)
    orders = [sum(batches[first : first + 3], []) for first in range(0, 18, 3)]
    assert [sorted(order) for order in orders] == [[*range(48)]] * 6, "the examples of each epoch"
    assert len(set(map(tuple, orders))) == 6, "different orders in 3 epochs with each of 2 seeds: which seed has each?"
    assert torch.equal(before, torch.get_rng_state()), "other random numbers change: from which does randperm draw?"


def before_step(coming, steps, done):
    if coming.get("kill") == done:
        raise KeyboardInterrupt
    steps.append(done)
    if coming.get(f"signal to rank {dist.get_rank()}") == done:
        signal.raise_signal(signal.SIGUSR1)


def test_goes_on(work, ranks):
    """after a signal, or killed, all ranks end after the same step; then they go on, and end with the same weights"""

    def start():
        whole = None
        for name, coming, first, end, wanted, kept in STARTS:
            folder, steps, training = Path(name), [], make_training(work, seed=first)
            folder.mkdir(exist_ok=True)
            plan, hook = work.Plan(3, 4, save_every=5, seed=0), partial(before_step, coming, steps)
            try:
                status = work.train(training, IMAGES, LABELS, plan, folder, hook)
            except KeyboardInterrupt:
                status = "killed"
            dist.barrier()  # rank 0 may remove files when the others have returned
            signals = ", ".join(f"{what} in step {step}" for what, step in coming.items()) or "no signal"
            told = f"save_every=5, {signals}, begun with step {first}"
            hint = f"{told}: from which step does it go on, and after which one must all ranks end?"
            assert steps == [*range(first, end)], hint
            assert checkpoints(folder) == kept, f"{told}: after which steps is a checkpoint saved?"
            assert status == wanted, f"{told}: the exit status: which one is right when no step is left?"
            whole = whole or training
            if status == 0:
                check_same(f"{told}: a weight at the end", training, whole, "what does a step read?")

    ranks(start, 3)
