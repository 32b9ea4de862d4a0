"""A job that the cluster ends at any moment, and that goes on when it is started again.

python preempted_job.py           runs the job with two interruptions, and without
python preempted_job.py FOLDER    is the job: it saves checkpoints in FOLDER, and goes on from there
"""

import argparse
import os
import re
import signal
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
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

from exercises.data import load_examples

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # what Slurm sends by itself, and with `#SBATCH --signal=USR1@60`
INTERRUPTED = 128 + signal.SIGTERM  # exit status 143: start me again
KEEP = 2  # so many checkpoints stay in the folder


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
        # Gap 1: when one of SIGNALS comes, Python must call `receive`. Other signals keep their handlers.
        ### BEGIN SOLUTION
        for number in SIGNALS:
            signal.signal(number, self.receive)
        ### END SOLUTION

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Sets `received`, and does nothing else. Python can call it between any two lines of the program."""
        # Gap 2
        ### BEGIN SOLUTION
        self.received = True
        ### END SOLUTION


def agreed(received: bool) -> bool:
    """Whether any rank has received a signal. All ranks call this function, and all get the same answer."""
    # Gap 3: ask all ranks with a collective call.
    ### BEGIN SOLUTION
    flag = torch.tensor(int(received))
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag)
    ### END SOLUTION


# --- The checkpoint ---
def path_of(folder: Path, done: int) -> Path:
    """The file of the checkpoint after `done` steps."""
    return folder / f"step-{done}.pt"


def saved_steps(folder: Path) -> list[int]:
    """The numbers of the checkpoints in the folder, the smallest first. Files with other names do not count."""
    # Gap 4: a file name is text. Return numbers, in the order of numbers.
    ### BEGIN SOLUTION
    found = (re.fullmatch(r"step-(\d+)\.pt", path.name) for path in folder.iterdir())
    return sorted(int(name[1]) for name in found if name)
    ### END SOLUTION


def save(folder: Path, training: Training, done: int) -> None:
    """Writes the checkpoint after `done` steps. All ranks call this. When it returns in any rank, the file is there.

    Rank 0 writes a file with another name in the same folder, and then renames it. If the job is killed at any moment,
    the older checkpoints are still whole. After the rename the new checkpoint stays, and the latest ones with smaller
    numbers: KEEP in all. The others are removed, also those with larger numbers: damaged, or of an earlier training.
    """
    # Gap 5: a training has three parts. Which rank writes them, and which ranks wait?
    ### BEGIN SOLUTION
    if dist.get_rank() == 0:
        states = {name: part.state_dict() for name, part in training._asdict().items()}
        unfinished = folder / "unfinished.tmp"
        torch.save({**states, "done": done}, unfinished)
        os.replace(unfinished, path_of(folder, done))
        numbers = saved_steps(folder)
        kept = [number for number in numbers if number <= done][-KEEP:]
        for number in set(numbers) - set(kept):
            path_of(folder, number).unlink()
    dist.barrier()
    ### END SOLUTION


def load_latest(folder: Path, training: Training) -> int:
    """Loads the latest whole checkpoint in every rank; returns how many steps are done. No whole checkpoint: 0.

    All ranks call this. A file that torch.load can't read (cut off, empty, a text) is skipped, not removed, and the
    checkpoint before it is tried. If it can be read, it is whole.
    """
    # Gap 6: torch.load raises a different error for each kind of damage.
    ### BEGIN SOLUTION
    for done in reversed(saved_steps(folder)):
        try:
            states = torch.load(path_of(folder, done), map_location="cpu", weights_only=True)
        except Exception as error:  # noqa: BLE001 - each kind of damage raises another one
            print(f"{path_of(folder, done).name} is skipped: {type(error).__name__}", file=sys.stderr)
            continue
        for name, part in training._asdict().items():
            part.load_state_dict(states[name])
        return done
    return 0
    ### END SOLUTION


# --- The training ---
def batches(length: int, plan: Plan, done: int) -> Iterator[Tensor]:
    """The indices of each batch that is left after `done` steps. The last batch of an epoch may be smaller.

    Each epoch has its own order of the `length` examples, which depends only on the seed and the number of the epoch.
    """
    # Gap 7: in which epoch is step number `done`? How many batches of this epoch are done? Draw each order with a
    # torch.Generator, so that other random numbers of the program stay the same.
    ### BEGIN SOLUTION
    first, skipped = divmod(done, ceil(length / plan.batch_size))
    for epoch in range(first, plan.epochs):
        order = torch.randperm(length, generator=torch.Generator().manual_seed(plan.seed + epoch))
        yield from order.split(plan.batch_size)[skipped if epoch == first else 0 :]
    ### END SOLUTION


def train_step(training: Training, images: Tensor, labels: Tensor) -> None:
    """One step on a batch. The share of a rank is every world_size-th example."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    training.optimizer.zero_grad()
    logits = training.model(images[rank::world_size])
    (F.cross_entropy(logits, labels[rank::world_size], reduction="sum") / len(labels)).backward()
    for parameter in training.model.parameters():
        dist.all_reduce(parameter.grad)
    training.optimizer.step()
    training.schedule.step()


def train(
    training: Training, images: Tensor, labels: Tensor, plan: Plan, folder: Path, before_step: Callable[[int], None]
) -> int:
    """Trains from the latest checkpoint to the end, or until a signal comes; returns the exit status of the job.

    The status is 0 if the last step is done, else INTERRUPTED. A checkpoint is saved after every `save_every` steps
    (counted from the beginning of the training), after the last step, and after the step in which a signal came.
    """
    notice = Notice()
    last = plan.epochs * ceil(len(labels) / plan.batch_size)
    done = load_latest(folder, training)
    for batch in batches(len(labels), plan, done):
        before_step(done)  # the checks and job() send signals here
        train_step(training, images[batch], labels[batch])
        done += 1
        # Gap 8: must the ranks save now? Must they end now?
        ### BEGIN SOLUTION
        ending = agreed(notice.received)
        if ending or done % plan.save_every == 0 or done == last:
            save(folder, training, done)
        if ending and done < last:
            return INTERRUPTED
        ### END SOLUTION
    return 0


# --- How often? ---
def lost_share(interval: float, cost: float, between_failures: float) -> float:
    """The share of the time that is lost, to first order: for writing, and for steps that are made a second time.

    `interval` between two checkpoints, `cost` of writing one, mean time `between_failures` of the job: in seconds.
    """
    return cost / interval + interval / 2 / between_failures  # a failure loses half an interval on average


def best_interval(cost: float, between_failures_of_node: float, nodes: int) -> float:
    """The interval that loses the least time, in seconds (Young, 1974). The job fails when one of its nodes fails."""
    return sqrt(2 * cost * between_failures_of_node / nodes)


# --- The program ---
PLAN = Plan(epochs=6, batch_size=64, save_every=25, seed=0)


def job(folder: Path, signal_at: int | None = None) -> tuple[int, nn.Module]:
    """Runs the job; returns its exit status and the model. The last rank gets a signal before step `signal_at`."""
    group = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("gloo", **group)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = load_examples()
    images, labels = torch.from_numpy(data.train_images), torch.from_numpy(data.train_labels)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = CosineAnnealingLR(optimizer, PLAN.epochs * ceil(len(labels) / PLAN.batch_size))
    steps = []

    def before_step(done: int) -> None:
        steps.append(done)
        if done == signal_at and dist.get_rank() == dist.get_world_size() - 1:
            signal.raise_signal(signal.SIGUSR1)

    status = train(Training(model, optimizer, schedule), images, labels, PLAN, folder, before_step)
    if dist.get_rank() == 0:
        made = f"steps {steps[0]} to {steps[-1]}" if steps else "no step"
        print(f"{made}: exit status {status}", flush=True)
    dist.destroy_process_group()
    return status, model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path, help="of the job's checkpoints")
    parser.add_argument("--signal-at", type=int, help="the job gets a signal before this step, counted from 0")
    options = parser.parse_args()
    if options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
        raise SystemExit(job(options.folder, options.signal_at)[0])
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as other:
        for signal_at in (40, 90, None, None):  # a cluster starts it again; the fourth time it is done already
            _, again = job(Path(name), signal_at)
        print("kept:", *(path_of(Path(name), done).name for done in saved_steps(Path(name))))
        print("without an interruption: ", end="")
        _, whole = job(Path(other))
    one, two = (nn.utils.parameters_to_vector(model.parameters()) for model in (again, whole))
    print(f"weights differ by {(one - two).abs().max():g}")
    cost, between_failures = 60.0, 1000 * 24 * 3600.0  # a minute; of one node, 1000 days
    for nodes in (1, 32, 1024):
        interval = best_interval(cost, between_failures, nodes)
        lost = lost_share(interval, cost, between_failures / nodes)
        print(f"nodes: {nodes:5}  a checkpoint every {interval / 60:7.1f} minutes  lost: {lost:.2%}")


if __name__ == "__main__":
    main()
