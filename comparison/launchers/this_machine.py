"""`--launcher local`: runs programs on this machine, one after the other if they are timed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from comparison.launchers import Follower, Group
from comparison.launchers.job_folder import finished
from comparison.runner import run_program, run_side_by_side


@dataclass
class ThisMachine:
    """A `Launcher` for this machine. `folder`: the comparison's folder."""

    folder: Path
    place: str = field(default="", init=False)

    def run(self, groups: Sequence[Group], at_once: int, timeout: float, follower: Follower) -> None:
        programs = [program for group in groups for program in group]
        there = finished(self.folder)  # by jobs of a cluster that made the comparison's earlier runs
        for program in [one for one in programs if one.run_dir in there]:
            job, place = there[program.run_dir]
            programs.remove(program)
            program, ended = job.work().programs[place], job.ended(place)
            assert ended is not None
            follower.started(program)
            follower.ended(program, ended)
            job.take_note(place)
        if at_once > 1:
            run_side_by_side(programs, at_once, timeout, follower.ended)
            return
        for program in programs:
            follower.started(program)
            follower.ended(program, run_program(program, timeout, partial(follower.see, program)))
