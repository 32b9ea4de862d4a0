"""Rounds that other programs have disturbed: they are left out of speeds and ratios, and repeated.

docs/noise.md describes the rule, and tests/comparison/test_noise.py tests it with simulated noise.
"""

import math
from collections.abc import Callable, Sequence

from comparison.intervals import MIN_ROUNDS
from comparison.jobs import Job, Variant, jobs_of_round
from comparison.options import CompareConfig
from comparison.store import Run

# A run is disturbed if others used more than BUSY of all the machine's cores, and less than IDLE of them was idle.
BUSY, IDLE = 0.10, 0.25

RoundKey = tuple[int, int]  # seed and number of a round


def disturbs(other: float, own: float | None) -> bool:
    """Whether the load of other programs may slow down a run.

    Args:
      other, own: shares of all the machine's cores that other programs and the run have used; None: not known.
    """
    has_room = own is not None and own + other <= 1 - IDLE
    return other > BUSY and not has_room


def is_due(disturbed: Sequence[bool], repeats: int) -> bool:
    """Whether to make one more round. `disturbed`: whether each round so far was; `repeats`: rounds asked for."""
    return disturbed.count(False) < repeats and len(disturbed) < repeats + most_taken_again(repeats)


def is_disturbed(run: Run) -> bool:
    """Whether others may have slowed down a run's training; False if not known, as on several nodes with srun."""
    other, result = other_load(run), run.result
    if other is None or result is None:
        return False
    use, machine = result.cpu_utilisation, result.machine
    return disturbs(other, None if use is None else use * machine.cores / machine.all_cores)


def other_load(run: Run) -> float | None:
    """Share of all cores that others used while a run trained; if that was too short to measure, during its process."""
    in_training = run.result.training_other_load if run.result else None
    return run.record.other_load if in_training is None else in_training


def disturbed_rounds(runs: Sequence[Run]) -> frozenset[RoundKey]:
    """Seed and number of each round in which a run was disturbed; `runs`: of one variant."""
    return frozenset((run.record.seed, run.record.round) for run in runs if is_disturbed(run))


def most_taken_again(repeats: int) -> int:
    """How many more rounds a seed may get: half the number that was asked for, rounded up."""
    return math.ceil(repeats / 2)


def taken_again(
    options: CompareConfig, variants: Sequence[Variant], read: Callable[[Job], Run | None]
) -> tuple[list[Run], list[Job]]:
    """Of the additional rounds, which replace disturbed ones: the runs that have ended, and the jobs to be made next.

    Disturbed rounds are repeated at the end, after all others: the disturbance may be over then.

    Args:
      read: returns the run of a job, or None if it has not ended.
    """
    runs: list[Run] = []
    missing: list[Job] = []
    few = options.repeats * len(options.all_seeds) < MIN_ROUNDS  # there will be no ratio anyway
    if options.disturbed == "keep" or few:
        return runs, missing
    for variant in variants:
        for seed in options.all_seeds:
            disturbed: list[bool] = []
            while is_due(disturbed, options.repeats):
                jobs = jobs_of_round(options, variant, seed, len(disturbed) + 1)
                found = [run for job in jobs if (run := read(job))]
                disturbed.append(any(map(is_disturbed, found)))
                if len(disturbed) > options.repeats:
                    runs += found
                    missing += [job for job in jobs if read(job) is None]
                    if len(found) < len(jobs):
                        break
    return runs, missing
