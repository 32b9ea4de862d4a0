"""`--launcher local`: runs programs on this machine, one after the other if they are timed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from comparison.run.launchers import Follower, Group
from comparison.run.launchers.job_folder import finished
from comparison.run.runner import run_program, run_side_by_side
from comparison.run.turns import run_in_turns


@dataclass
class ThisMachine:
    """A `Launcher` for this machine. `folder`: the comparison's folder."""

    folder: Path
    place: str = field(default="", init=False)

    def run(
        self, groups: Sequence[Group], at_once: int, timeout: float, follower: Follower, turns: bool = False
    ) -> None:
        there = finished(self.folder)  # by jobs of a cluster that made the comparison's earlier runs
        for program in [member for group in groups for member in group if member.run_dir in there]:
            job, place = there[program.run_dir]
            program, ended = job.work().programs[place], job.ended(place)
            assert ended is not None
            follower.started(program)
            follower.ended(program, ended)
            job.take_note(place)
        groups = [[member for member in group if member.run_dir not in there] for group in groups]
        if at_once > 1:
            run_side_by_side([program for group in groups for program in group], at_once, timeout, follower.ended)
            return
        for group in groups:
            run_group(group, timeout, follower, turns)


def run_group(group: Group, timeout: float, follower: Follower, turns: bool) -> None:
    """Runs the programs of a group: in turns, or one after the other, as always on several nodes."""
    if turns and len(group) > 1 and not any(program.starter for program in group):
        run_in_turns(group, timeout, follower)
        return
    for program in group:
        follower.started(program)
        follower.ended(program, run_program(program, timeout, partial(follower.see, program)))
