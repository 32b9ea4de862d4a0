"""Decides when a run makes checkpoints: at the requested steps, and when a signal asks the run to end.

All processes of a run must make a checkpoint after the same step. They agree on this step when they fetch losses, which
they do together: each process then reports whether it has received a signal.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from common.platform.program import STOP_SIGNALS, HeldSignal
from common.record.checkpoints import Checkpoint, write_checkpoint
from common.spec.batches import Plan
from common.spec.options import TrainConfig
from common.spec.state import TrainState

VOTE_SECONDS = 5.0  # approximate time between two votes of the processes


class Checkpointer:
    """Each process of a run has one.

    Attributes:
      every: number of steps between checkpoints, or "epoch"; None: no checkpoints.
      due: whether the training loop must save its state now.
      next_vote: the step after which the processes vote again.
    """

    def __init__(self, config: TrainConfig, plan: Plan, writes: bool) -> None:
        """`writes`: whether this process writes the files of the run."""
        self.every, self.keep, self.plan, self.writes = config.checkpoint_every, config.keep, plan, writes
        self.run_dir = config.run_dir or Path()
        self.held = HeldSignal()
        self.due, self.signal = False, 0
        self.next_vote = plan.first_step + 1
        self._looked = plan.first_step - 1
        self._voted, self._voted_at = plan.first_step, time.monotonic()
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[Path] | None = None

    # --- Agreeing ---

    def needs_losses(self, done: int) -> bool:
        """Whether losses must be fetched after step `done`: for a vote or for a checkpoint."""
        return self.every is not None and done >= min(self.stops(done - 1))

    def stops(self, done: int) -> list[int]:
        """The next steps, all after step `done`, after which the losses are needed."""
        if self.every is None:
            return []
        steps = [max(done + 1, self.next_vote)]
        return [*steps, (self._looked // self.every + 1) * self.every] if isinstance(self.every, int) else steps

    def votes(self, done: int) -> list[float]:
        """This process's vote: which signal it has received and, if it writes, the steps until the next vote."""
        if self.every is None:
            return []
        now = time.monotonic()
        steps = max(1, done - self._voted)
        again = min(2 * steps, max(1, int(VOTE_SECONDS * steps / max(1e-9, now - self._voted_at))))
        self._voted, self._voted_at = done, now
        return [*(float(self.held.number == one) for one in STOP_SIGNALS), float(again if self.writes else 0)]

    def agree(self, done: int, votes: Sequence[float]) -> None:
        """Applies the result of a vote; `votes` are the sums of all processes' votes."""
        if self.every is None:
            return
        *signals, steps = votes
        self.next_vote = done + int(steps)
        if any(signals) and not self.signal:
            self.signal = STOP_SIGNALS[max(range(len(signals)), key=signals.__getitem__)]

    # --- Steps and epochs ---

    def look(self, done: int, evaluated: bool = False) -> None:
        """Decides whether a checkpoint is due after step `done`, or after the evaluation that follows it.

        The checkpoint of an epoch's last step is made after the evaluation. The last step of a run has no checkpoint.
        """
        ends_epoch = done == self.plan.last_step(self.plan.epoch_of(done))
        if self.every is None or done == self.plan.total_steps or ends_epoch != evaluated:
            return
        by_steps = isinstance(self.every, int) and done // self.every > self._looked // self.every
        self.due = bool(self.signal) or by_steps or (self.every == "epoch" and evaluated)
        self._looked = done

    # --- Writing ---

    def write(self, checkpoint: Checkpoint, losses: Sequence[float], state: TrainState) -> None:
        """Writes a checkpoint in the background, after the previous one. Raises FileError if that one failed."""
        self.due = False
        if self.writes:
            self.wait()
            copies = checkpoint.model_copy(deep=True), list(losses), state
            self._writing = self._thread.submit(write_checkpoint, self.run_dir, *copies, self.keep)

    def close(self) -> None:
        """Waits for the writing thread, however the run ends, so that no half-written checkpoint remains."""
        self._thread.shutdown()

    def wait(self) -> None:
        """Waits for the checkpoint that is being written. Raises FileError if it can't be written."""
        writing, self._writing = self._writing, None
        if writing:
            writing.result()
