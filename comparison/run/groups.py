"""Runs the programs of a comparison: in turns, one after the other, or side by side if nothing is timed."""

from collections.abc import Sequence
from functools import partial

from comparison.run.follower import Follower
from comparison.run.program import Program
from comparison.run.runner import run_program, run_side_by_side
from comparison.run.turns import run_in_turns


def run_groups(
    groups: Sequence[Sequence[Program]], at_once: int, timeout: float, follower: Follower, turns: bool = False
) -> None:
    """Runs all programs to their ends. An interrupt, such as Ctrl-C, ends the running programs.

    Args:
      groups: the programs of a group are compared in pairs; groups run one after the other.
      at_once: number of programs that may run at the same time; 1 if programs are timed.
      timeout: seconds after which a program is ended and counts as failed.
      turns: whether the programs of a group train in turns, see `turns.py`. Otherwise, and always on several nodes, one
        runs after the other.
    """
    if at_once > 1:
        run_side_by_side([program for group in groups for program in group], at_once, timeout, follower.ended)
        return
    for group in groups:
        if turns and len(group) > 1 and not any(program.starter for program in group):
            run_in_turns(group, timeout, follower)
            continue
        for program in group:
            follower.started(program)
            follower.ended(program, run_program(program, timeout, partial(follower.see, program)))
