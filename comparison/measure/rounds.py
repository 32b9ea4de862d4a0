"""Turns and rounds that other programs have disturbed: they are left out of speeds and ratios; and when to stop.

docs/comparison.md describes the rules, and tests/comparison/test_jobs.py tests them.
"""

import math
from collections.abc import Callable, Sequence

from comparison.measure.table import Row, Table, speed_ratio
from comparison.plan.jobs import Job, Variant, contenders, first_rounds, jobs_of_round
from comparison.plan.options import FIRST_ROUNDS, CompareConfig
from comparison.ratios import MIN_CYCLES, MIN_ROUNDS
from comparison.run.load_meter import load_disturbs
from comparison.run.store import RoundKey, Run

LEAST_QUIET = 0.25  # of a run's turns; where fewer are undisturbed, these may be disturbed, too, but too short to tell


def is_round_due(disturbed: Sequence[bool], repeats: int, narrow: bool = False) -> bool:
    """Whether to make one more round.

    Args:
      disturbed: whether each round so far was disturbed.
      repeats: rounds asked for.
      narrow: whether all intervals of the rounds so far are as narrow as --ratio-within asks.
    """
    quiet = disturbed.count(False)
    enough = FIRST_ROUNDS if narrow else repeats
    return quiet < enough and len(disturbed) < repeats + most_further_rounds(repeats)


def is_round_disturbed(run: Run) -> bool:
    """Whether others may have slowed down a run's training; False if not known, as on several nodes with srun."""
    if len(run.turns) >= MIN_CYCLES:
        return len(run.quiet_turns) < max(MIN_CYCLES, LEAST_QUIET * len(run.turns))
    other, result = other_load(run), run.result
    if other is None or result is None:
        return False
    use, machine = result.cpu_utilisation, result.machine
    return load_disturbs(other, None if use is None else use * machine.cores / machine.all_cores)


def other_load(run: Run) -> float | None:
    """Share of all cores that others used while a run trained; if that was too short to measure, during its process."""
    in_training = run.result.training_other_load if run.result else None
    return run.record.other_load if in_training is None else in_training


def disturbed_rounds(runs: Sequence[Run]) -> frozenset[RoundKey]:
    """Seed and number of each round in which a run was disturbed; `runs`: of one variant."""
    return frozenset((run.record.seed, run.record.round) for run in runs if is_round_disturbed(run))


def most_further_rounds(repeats: int) -> int:
    """How many more rounds a seed may get: half the number that was asked for, rounded up."""
    return math.ceil(repeats / 2)


def further_rounds(
    options: CompareConfig, variants: Sequence[Variant], read: Callable[[Job], Run | None]
) -> tuple[list[Run], list[Job]]:
    """Of the rounds after those of `comparison_jobs`: the runs that have ended, and the jobs to be made next.

    There are such rounds instead of disturbed ones, at the end, when the disturbance may be over, and with
    --ratio-within until the intervals are narrow enough. Rounds that have been made are returned even if the options
    no longer ask for them, as with another --disturbed.

    Args:
      read: returns the run of a job, or None if it has not ended.
    """
    runs: list[Run] = []
    missing: list[Job] = []
    first = first_rounds(options)
    in_turns = options.turns == "auto" and len(contenders(options)) > 1
    has_ratio = in_turns or options.repeats * len(options.seeds) >= MIN_ROUNDS
    retakes = options.disturbed == "retake" and has_ratio
    for variant in variants:
        for seed in options.seeds:
            disturbed: list[bool] = []
            of_seed: list[Run] = []
            while True:
                due = is_round_due(disturbed, options.repeats, _is_narrow(options, of_seed))
                jobs = jobs_of_round(options, variant, seed, len(disturbed) + 1)
                of_round = [run for job in jobs if (run := read(job))]
                of_seed += of_round
                disturbed.append(retakes and any(map(is_round_disturbed, of_round)))
                if len(disturbed) > first:
                    runs += of_round
                    missing += [job for job in jobs if due and read(job) is None]
                if len(of_round) < len(jobs):
                    break
    return runs, missing


def _is_narrow(options: CompareConfig, runs: Sequence[Run]) -> bool:
    """Whether the intervals of all ratios to the first row are as narrow as --ratio-within asks."""
    share = options.ratio_within
    if share is None or not runs:
        return False
    table = Table(0, {}, keep_disturbed=options.disturbed == "keep")
    for contender in contenders(options):
        of_row = [run for run in runs if run.record.contender == contender and run.result]
        table.rows.append(Row(table, contender, of_row))
    first, *others = table.rows
    ratios = [speed_ratio(first, other)[0] for other in others if other.runs]
    return bool(first.runs) and all(ratio is not None and ratio.is_within(share) for ratio in ratios)
