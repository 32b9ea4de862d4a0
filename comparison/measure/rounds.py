"""Rounds that other programs have disturbed: they are left out of speeds and ratios if others are not; when to stop.

docs/comparison.md describes the rules, and tests/comparison/test_jobs.py tests them.
"""

from collections.abc import Sequence

from comparison.plan.options import FIRST_ROUNDS
from comparison.ratios import MIN_CYCLES
from comparison.run.load_meter import load_disturbs, quiet
from comparison.run.store import Run

LEAST_QUIET = 0.25  # of a run's turns; where fewer are undisturbed, these may be disturbed, too, but too short to tell


def is_round_due(disturbed: Sequence[bool], repeats: int, narrow: bool = False) -> bool:
    """Whether to make one more round; at most half the number that was asked for, rounded down, are added.

    Args:
      disturbed: whether each round so far was disturbed.
      repeats: rounds asked for.
      narrow: whether all intervals of the rounds so far are as narrow as --ratio-within asks.
    """
    quiet = disturbed.count(False)
    enough = FIRST_ROUNDS if narrow else repeats
    return quiet < enough and len(disturbed) < repeats + repeats // 2


def is_round_disturbed(run: Run) -> bool:
    """Whether others may have slowed down a run's training; False if not known, as on several nodes with srun."""
    if len(run.turns) >= MIN_CYCLES:
        return len(quiet(run.turns)) < max(MIN_CYCLES, LEAST_QUIET * len(run.turns))
    other, result = other_load(run), run.result
    if other is None or result is None:
        return False
    use, machine = result.cpu_utilisation, result.machine
    return load_disturbs(other, None if use is None else use * machine.cores / machine.all_cores)


def other_load(run: Run) -> float | None:
    """Share of all cores that others used while a run trained; if that was too short to measure, during its process."""
    in_training = run.result.training_other_load if run.result else None
    return run.record.other_load if in_training is None else in_training
