"""A job that the cluster ends at any moment, and that goes on when it is started again.

python -m exercises.preempted_job.exercise              starts itself as a job, twice interrupted and started again
python -m exercises.preempted_job.exercise FOLDER       is the job: it keeps checkpoints in FOLDER, and goes on there
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from math import ceil, sqrt
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

from exercises.data import load_examples

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # Slurm's own, and the one of `#SBATCH --signal=USR1@60`
INTERRUPTED = 128 + signal.SIGTERM  # exit status 143: start me again
KEEP = 2  # checkpoints


class Training(NamedTuple):
    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: LRScheduler  # of the learning rate; stepped after every step of the optimizer


class Plan(NamedTuple):
    epochs: int
    batch_size: int  # of all ranks together
    save_every: int  # steps
    seed: int


# --- The signal ---


class Notice:
    """Whether a signal has told this process that the cluster will end it."""

    def __init__(self) -> None:
        self.received = False
        # Gap 1: have `receive` called when one of SIGNALS comes.
        raise NotImplementedError("gap 1")

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Called in the middle of any line of the program: sets `received`, and does nothing else."""
        # Gap 2
        raise NotImplementedError("gap 2")


def agreed(received: bool) -> bool:
    """Whether any rank has received a signal: the same answer in all ranks, which all call this."""
    # Gap 3: ask all ranks with one collective call.
    raise NotImplementedError("gap 3")


# --- The checkpoint ---


def path_of(folder: Path, done: int) -> Path:
    """Where the checkpoint after `done` steps lies."""
    return folder / f"step-{done}.pt"


def saved_steps(folder: Path) -> list[int]:
    """The numbers of the checkpoints in the folder, the smallest first. Files with other names do not count."""
    # Gap 4: names are text; what is wanted are numbers, in their order.
    raise NotImplementedError("gap 4")


def save(folder: Path, training: Training, done: int) -> None:
    """Writes the checkpoint after `done` steps. All ranks call this. When it returns in any rank, the file is there.

    Rank 0 writes: under another name in the same folder, and then renames the file. A kill at any moment leaves the
    older checkpoints whole. When the new one is in its place, the latest one before it stays too: KEEP in all. The
    older ones are removed. Those with larger numbers are removed too: they were damaged, or training had begun after
    them.
    """
    # Gap 5: which parts has a training? Who writes, and who waits?
    raise NotImplementedError("gap 5")


def load_latest(folder: Path, training: Training) -> int:
    """Puts the latest whole checkpoint back, in every rank; returns how many steps are done. No checkpoint: 0.

    One that can't be read (cut off, empty, something else) is passed over, and the one before it is taken.
    """
    # Gap 6: torch.load raises an error of another kind for each kind of damage.
    raise NotImplementedError("gap 6")


# --- The training ---


def batches(length: int, plan: Plan, done: int) -> Iterator[torch.Tensor]:
    """The indices of each batch that is still to be trained after `done` steps of a training on `length` examples.

    Each epoch has an order of its own, which depends on the seed and the epoch's number alone. The last batch of an
    epoch may be smaller.
    """
    # Gap 7: in which epoch is step number `done`, and how many batches of this epoch are trained already?
    raise NotImplementedError("gap 7")


def train_step(training: Training, images: torch.Tensor, labels: torch.Tensor) -> None:
    """One step on a batch, of which each rank takes its share: every world_size-th example."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    training.optimizer.zero_grad()
    logits = training.model(images[rank::world_size])
    (F.cross_entropy(logits, labels[rank::world_size], reduction="sum") / len(labels)).backward()
    for parameter in training.model.parameters():
        dist.all_reduce(parameter.grad)
    training.optimizer.step()
    training.schedule.step()


def train(
    training: Training,
    images: torch.Tensor,
    labels: torch.Tensor,
    plan: Plan,
    folder: Path,
    before_step: Callable[[int], None] = lambda done: None,
) -> int:
    """Goes on after the latest checkpoint, to the end or until a signal; returns the exit status of the job.

    0: the last step is made; else INTERRUPTED. A checkpoint is saved after every `save_every` steps (counted from the
    beginning of the training), after the last step, and after the step in which the first rank received a signal.
    """
    notice = Notice()
    last = plan.epochs * ceil(len(labels) / plan.batch_size)
    done = load_latest(folder, training)
    for batch in batches(len(labels), plan, done):
        before_step(done)  # the checks and main() send signals here
        train_step(training, images[batch], labels[batch])
        done += 1
        # Gap 8: do the ranks end here? Is it time for a checkpoint?
        raise NotImplementedError("gap 8")
    return 0


# --- How often? ---


def lost_share(interval: float, cost: float, between_failures: float) -> float:
    """The share of the time that is lost, to first order: for writing, and for what is trained a second time.

    All in seconds: `interval` between two checkpoints, `cost` of writing one, mean time `between_failures` of the job,
    which come without a notice. A failure loses half an interval on average.
    """
    return cost / interval + interval / 2 / between_failures


def best_interval(cost: float, between_failures_of_node: float, nodes: int) -> float:
    """The interval for which the least time is lost, for a job that fails whenever one of its nodes fails.

    Young (1974), "A first order approximation to the optimum checkpoint interval".
    """
    # Gap 9: how long is the mean time between failures of the job? Where is the slope of `lost_share` zero?
    raise NotImplementedError("gap 9")


# --- The program ---

PLAN = Plan(epochs=6, batch_size=64, save_every=25, seed=0)


def make_training(last: int) -> Training:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Training(model, optimizer, CosineAnnealingLR(optimizer, last))


def job(folder: Path, signal_at: int | None) -> tuple[int, Training]:
    """Runs the job; its exit status, and what it has trained. The last rank gets a signal before step `signal_at`."""
    group = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("gloo", **group)
    torch.set_num_threads(1)
    data = load_examples()
    images, labels = torch.from_numpy(data.train_images), torch.from_numpy(data.train_labels)
    training = make_training(PLAN.epochs * ceil(len(labels) / PLAN.batch_size))
    steps: list[int] = []

    def before_step(done: int) -> None:
        steps.append(done)
        if done == signal_at and dist.get_rank() == dist.get_world_size() - 1:
            signal.raise_signal(signal.SIGUSR1)

    status = train(training, images, labels, PLAN, folder, before_step)
    if dist.get_rank() == 0:
        made = f"steps {steps[0]} to {steps[-1]}" if steps else "no step"
        print(f"{made}: exit status {status}", flush=True)
    dist.destroy_process_group()
    return status, training


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path, help="of the job's checkpoints")
    parser.add_argument("--signal-at", type=int, help="the job gets a signal before this step, counted from 0")
    options = parser.parse_args()
    if options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
        raise SystemExit(job(options.folder, options.signal_at)[0])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "job")
        command = [sys.executable, "-m", __spec__.name, str(folder), "--signal-at"]
        for signal_at in (40, 90, -1):  # as the cluster starts it: again, until the status is 0
            status = subprocess.run([*command, str(signal_at)], check=False).returncode
            assert status in (0, INTERRUPTED), f"the job has ended with status {status}"
        print("kept:", *(path_of(folder, done).name for done in saved_steps(folder)))
        print("the finished job once more: ", end="", flush=True)
        _, again = job(folder, None)
        print("without an interruption: ", end="", flush=True)
        _, whole = job(Path(tempfile.mkdtemp(dir=name)), None)
    pairs = zip(again.model.parameters(), whole.model.parameters(), strict=True)
    print(f"weights differ by {max((one - other).abs().max().item() for one, other in pairs):g}")
    cost, between_failures = 60.0, 1000 * 24 * 3600.0  # a minute; of one node, 1000 days
    for nodes in (1, 32, 1024):
        interval = best_interval(cost, between_failures, nodes)
        lost = lost_share(interval, cost, between_failures / nodes)
        print(f"nodes: {nodes:5}  a checkpoint every {interval / 60:7.1f} minutes  lost: {lost:.2%}")


if __name__ == "__main__":
    main()
