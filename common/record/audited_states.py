"""States of a training before and after single steps, which compare.py audits afterwards (comparison/prove/audits.py).

compare.py chooses the steps anew for each round, and names them in the environment variable AUDITED_STEPS. Only the
recorder reads it, so a training loop can't treat these steps in another way.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from common.platform.files import write_safetensors
from common.spec.batches import Plan
from common.spec.state import TrainState

STEPS_VARIABLE = "AUDITED_STEPS"
STATES_DIR = "states"
# Of a state's file: number of steps in the call before it, if one of them is audited, or 0.
AUDITED_KEY = "audited_steps"


def audited_state_path(run_dir: Path, step: int) -> Path:
    """The file of the state after `step`."""
    return run_dir / STATES_DIR / f"step-{step:09}.safetensors"


def audited_state_steps(run_dir: Path) -> list[int]:
    """The steps after which a state is kept, in their order."""
    return sorted(int(path.stem.removeprefix("step-")) for path in (run_dir / STATES_DIR).glob("step-*.safetensors"))


class AuditedStates:
    """Decides after which steps a state is kept: before and after each audited step.

    Where a call takes several steps and can't be shorter, it is before and after the call. The state before the first
    step is not kept, since the configuration or the checkpoint determines it.

    Attributes:
      steps: the audited steps that are still to be taken, in their order.
      due: whether the state after the latest step is to be kept.
    """

    def __init__(self, plan: Plan, run_dir: Path, writes: bool) -> None:
        """`writes`: whether this process writes the files of the run."""
        named = os.environ.get(STEPS_VARIABLE, "").split()
        self.steps = sorted(step for step in map(int, named) if plan.first_step <= step <= plan.total_steps)
        self.run_dir, self.writes = run_dir, writes
        self.due = False
        self._within = plan.first_step in self.steps  # whether the next call takes an audited step
        self._longest, self._audited = 1, 0

    def stops(self) -> Sequence[int]:
        """The next steps after which a call must end, if its length is free."""
        return (self.steps[0] - 1, self.steps[0]) if self.steps else ()

    def look(self, done: int, number: int) -> None:
        """Called after each call, with the steps taken so far and those of the call."""
        while self.steps and self.steps[0] <= done:
            del self.steps[0]
        self._longest = max(self._longest, number)  # the last call of an epoch may be shorter than the next one
        next_within = bool(self.steps) and self.steps[0] <= done + self._longest
        self.due = self._within or next_within
        self._audited = number if self._within else 0
        self._within = next_within

    def keep(self, state: TrainState) -> None:
        self.due = False
        if self.writes:
            path = audited_state_path(self.run_dir, state.step)
            path.parent.mkdir(exist_ok=True)
            write_safetensors(path, state.to_arrays(), {AUDITED_KEY: str(self._audited)})
