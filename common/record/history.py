"""What a run has recorded so far: the losses of all steps, and a line for each epoch."""

import math
from array import array
from collections.abc import Sequence
from typing import Any

from common.experiment import Experiment
from common.platform.errors import DivergedError
from common.record.checkpoints import Checkpoint
from common.record.results import EpochLine
from common.record.sinks import Sink
from common.spec.batches import Plan


class History:
    """The losses and epochs of a run so far.

    Attributes:
      losses: losses of all steps that are fetched.
      epochs: lines of the finished epochs.
      epoch_correct: number of correct answers in the steps so far of the unfinished epoch.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.losses = array("d")
        self.epochs: list[EpochLine] = []
        self.epoch_correct = 0

    def go_on(self, checkpoint: Checkpoint, losses: Sequence[float]) -> None:
        """Continues from what was recorded until the checkpoint."""
        self.losses, self.epochs = array("d", losses), list(checkpoint.epochs)
        self.epoch_correct = checkpoint.epoch_correct

    def tell(self, sink: Sink) -> None:
        """Sends all steps and epochs to `sink` again, in the original order and without speeds."""
        done = 0
        for line in self.epochs:
            last = self.plan.last_step(line.epoch)
            sink.steps(last, self.losses[done:last], None)
            sink.epoch(line, None)
            done = last
        if self.losses[done:]:
            sink.steps(len(self.losses), self.losses[done:], None)

    def checkpoint(self, implementation: str, experiment: Experiment, epoch_seconds: float) -> Checkpoint:
        """A checkpoint after the latest step; `epoch_seconds` are the unfinished epoch's training seconds so far."""
        return Checkpoint(
            implementation=implementation,
            config=experiment.config,
            data_sha256=experiment.dataset.sha256,
            step=len(self.losses),
            epochs=self.epochs,
            epoch_correct=self.epoch_correct,
            epoch_seconds=epoch_seconds,
        )

    @property
    def evaluation(self) -> dict[str, Any]:
        """The fields of `RunResult` about the latest evaluation."""
        return self.epochs[-1].model_dump(include={"test_loss", "test_accuracy", "test_correct", "test_count"})

    def add_steps(self, losses: Sequence[float], correct: Sequence[float], largest_rate: float) -> None:
        """Adds steps. Raises DivergedError for a loss that is not finite.

        Args:
          correct: number of correct answers of each step.
          largest_rate: largest learning rate, for the message.
        """
        for step, loss in enumerate(losses, len(self.losses) + 1):
            if not math.isfinite(loss):
                raise DivergedError(
                    f"training diverged: the loss of step {step} is {loss};"
                    f" a smaller --learning-rate than {largest_rate:g} may help"
                )
        self.losses.extend(losses)
        self.epoch_correct += int(sum(correct))

    def add_epoch(
        self, test_loss: float, test_correct: int, test_count: int, train_seconds: float, eval_seconds: float
    ) -> EpochLine:
        """Adds and returns the line of the epoch that has ended."""
        epoch = len(self.epochs) + 1
        steps = self.plan.all_steps(epoch)
        counts = [self.plan.count(step) for step in steps]
        losses = self.losses[steps.start - 1 :]
        line = EpochLine(
            kind="epoch",
            epoch=epoch,
            train_loss=math.fsum(map(math.prod, zip(losses, counts, strict=True))) / sum(counts),
            train_accuracy=self.epoch_correct / sum(counts),
            train_seconds=train_seconds,
            test_loss=test_loss,
            test_accuracy=test_correct / test_count,
            test_correct=test_correct,
            test_count=test_count,
            eval_seconds=eval_seconds,
        )
        self.epochs.append(line)
        self.epoch_correct = 0
        return line
