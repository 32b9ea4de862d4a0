"""Tracking: log the numbers of a training with several processes, so that the curves show the whole training.

torchrun --standalone --nproc-per-node 2 tracking.py
"""

import csv
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before a group is made; see exercises/PT_CNN_MultiGPU.py
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger, Logger
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from exercises.data import load_examples

Batch = tuple[torch.Tensor, torch.Tensor]  # images: float32 (B, H, W, C), labels: int64 (B,)
EPOCHS, BATCH_SIZE, LEARNING_RATE, SEED, EVERY = 4, 64, 0.05, 0, 10


def begin(
    make_logger: Callable[[], Logger], rank: int, world_size: int, share: int, settings: dict[str, object]
) -> Logger | None:
    """On rank 0: makes the logger, and logs the hyperparameters. The other ranks make no logger and get None.

    Hyperparameters are the `settings`, and "world_size", "global_batch_size" and "torch_version" (torch.__version__).
    The caller's `settings` stay as they are. `share`: the number of examples that each process takes in a step.
    """
    # Gap 1
    ### BEGIN SOLUTION
    if rank != 0:
        return None
    logger = make_logger()
    more = {"world_size": world_size, "global_batch_size": share * world_size, "torch_version": str(torch.__version__)}
    logger.log_hyperparams({**settings, **more})
    return logger
    ### END SOLUTION


class LossLog:
    """Logs the training's loss and learning rate when the number of steps is a multiple of `every`, and at flush()."""

    def __init__(self, logger: Logger | None, every: int, step: int, device: torch.device) -> None:
        self.logger, self.every = logger, every
        self.step = step  # steps done since the training began, with those before an interruption
        self.pending = 0  # steps since the last time something was logged
        # Of these steps: the sum of the losses, and the number of examples.
        self.totals = torch.zeros(2, dtype=torch.float64, device=device)
        self.rate = 0.0

    def add(self, losses: torch.Tensor, rate: float) -> None:
        """Called after each step of the optimizer, in all processes.

        losses: (B,), of this process's examples. B may differ. Some processes may have none, but not all. The losses
        may have a graph; the log keeps no graph in memory.
        rate: the learning rate that this step has used.
        """
        # Gap 2: add up on the device, count the step, and flush if it is time. Do not fetch a number (item()) in each
        # step: the program then waits for the device. Do not reduce in each step: it then waits for other processes.
        ### BEGIN SOLUTION
        self.totals[0] += losses.detach().sum()
        self.totals[1] += len(losses)
        self.step += 1
        self.pending += 1
        self.rate = rate
        if self.step % self.every == 0:
            self.flush()
        ### END SOLUTION

    def flush(self) -> None:
        """Called in all processes at the same step. Does nothing if no step was added since the last entry.

        Otherwise logs "train/loss" and "train/learning_rate" at the number of steps done. The loss is the mean over the
        examples of all processes since the last entry. The learning rate is that of the last step.
        """
        # Gap 3: which processes take part in the reduction, and which one logs?
        ### BEGIN SOLUTION
        if self.pending == 0:
            return
        dist.all_reduce(self.totals)
        loss_sum, count = self.totals.tolist()
        if self.logger is not None:
            metrics = {"train/loss": loss_sum / count, "train/learning_rate": self.rate}
            self.logger.log_metrics(metrics, step=self.step)
        self.totals.zero_()
        self.pending = 0
        ### END SOLUTION


def train_epoch(
    model: nn.Module, batches: Iterable[Batch], optimizer: Optimizer, schedule: LRScheduler, log: LossLog
) -> None:
    """A step of the optimizer, and one of the schedule, for each batch."""
    model.train()
    for images, labels in batches:
        optimizer.zero_grad()
        losses = F.cross_entropy(model(images), labels, reduction="none")
        losses.mean().backward()
        # Gap 4: both steps, and log.add(). When is param_groups[0]["lr"] the rate of this step?
        ### BEGIN SOLUTION
        rate = optimizer.param_groups[0]["lr"]
        optimizer.step()
        schedule.step()
        log.add(losses, rate)
        ### END SOLUTION
    log.flush()  # the last steps of the epoch, which may be fewer than log.every


def log_test(logger: Logger | None, logits: torch.Tensor, labels: torch.Tensor, step: int) -> None:
    """Logs "test/loss" and "test/accuracy" over the examples of all processes, after `step` steps of training.

    logits: (B, classes), labels: (B,), of this process's examples. B may differ. Some processes may have none, not all.
    """
    # Gap 5
    ### BEGIN SOLUTION
    loss_sum = F.cross_entropy(logits, labels, reduction="sum").double()
    correct = (logits.argmax(dim=1) == labels).sum()
    totals = torch.stack([loss_sum, correct.double(), torch.full_like(loss_sum, len(labels))])
    dist.all_reduce(totals)
    loss_sum, correct, count = totals.tolist()
    if logger is not None:
        logger.log_metrics({"test/loss": loss_sum / count, "test/accuracy": correct / count}, step=step)
    ### END SOLUTION


def collect(indices: torch.Tensor, guesses: torch.Tensor, length: int) -> list[int] | None:
    """On rank 0 the guesses for all `length` test examples, in the order of the data set. None on other ranks.

    indices, guesses: int64 (B,), of this process. Several may have the same example (padding), with the same guess.
    """
    # Gap 6: dist.gather_object sends any object to rank 0, which needs a list to receive the objects of all.
    ### BEGIN SOLUTION
    shares: list = [None] * dist.get_world_size()
    rank = dist.get_rank()
    dist.gather_object((indices.tolist(), guesses.tolist()), shares if rank == 0 else None)
    if rank != 0:
        return None
    table = {index: guess for share in shares for index, guess in zip(*share, strict=True)}
    return [table[index] for index in range(length)]
    ### END SOLUTION


def tracked(logger: Logger | None, training: Callable[[], None]) -> None:
    """Calls `training`, and then finalize("success"), or finalize("failed") if an exception of any class ended it.

    The caller still gets the exception. Without finalize the last numbers may never be written.
    """
    # Gap 7: think of Ctrl-C too.
    ### BEGIN SOLUTION
    status = "failed"
    try:
        training()
        status = "success"
    finally:
        if logger is not None:
            logger.finalize(status)
    ### END SOLUTION


def print_metrics(path: Path) -> None:
    for row in csv.DictReader(path.open()):
        values = [f"{name} {float(value):.4f}" for name, value in sorted(row.items()) if value and name != "step"]
        print(f"step {row['step']:>3}: {', '.join(values)}")


def main() -> None:
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    alone = {"store": dist.HashStore(), "rank": 0, "world_size": 1}  # without torchrun
    dist.init_process_group("gloo", **({} if world_size > 1 else alone))
    data = load_examples()
    examples = TensorDataset(torch.from_numpy(data.train_images), torch.from_numpy(data.train_labels))
    sampler = DistributedSampler(examples, world_size, rank, shuffle=True, seed=SEED)
    share = BATCH_SIZE // world_size
    loader = DataLoader(examples, share, sampler=sampler)
    mine = torch.arange(rank, len(data.test_labels), world_size)  # the test examples of this process
    test_images, test_labels = torch.from_numpy(data.test_images)[mine], torch.from_numpy(data.test_labels)[mine]
    torch.manual_seed(SEED)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    schedule = CosineAnnealingLR(optimizer, EPOCHS * len(loader))
    settings: dict[str, object] = {"seed": SEED, "learning_rate": LEARNING_RATE, "epochs": EPOCHS}

    def train(run: int, epochs: range, step: int) -> int:
        """Trains for some epochs as one run of the tool, after `step` steps. Returns the number of steps done."""
        logger = begin(lambda: CSVLogger(folder, "digits", run), rank, world_size, share, settings)
        log = LossLog(logger, EVERY, step, torch.device("cpu"))

        def training() -> None:
            for epoch in epochs:
                sampler.set_epoch(epoch)
                train_epoch(model, loader, optimizer, schedule, log)
                with torch.inference_mode():
                    logits = network.eval()(test_images)
                log_test(logger, logits, test_labels, log.step)
            guesses = collect(mine, logits.argmax(dim=1), len(data.test_labels))
            if guesses is not None:
                right = sum(guess == label for guess, label in zip(guesses, data.test_labels, strict=True))
                print(f"run {run}: {right} of {len(guesses)} guesses are right")

        tracked(logger, training)
        if logger is not None:
            print_metrics(Path(folder, "digits", f"version_{run}", "metrics.csv"))
        return log.step

    with tempfile.TemporaryDirectory() as folder:
        # As if interrupted after half of the epochs. A checkpoint would hold the number of steps.
        step = train(0, range(EPOCHS // 2), step=0)
        train(1, range(EPOCHS // 2, EPOCHS), step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
