"""The program of a queue's job: it runs the programs of the job's folder on its machine, which form a round.

    python -m comparison.run.launchers.on_node FOLDER

If a job was taken off its machine and put back into the queue, it skips the programs that have already ended. A program
that was interrupted continues from its latest checkpoint.
"""

import common.platform.quiet_start  # noqa: F401 - see there; isort: skip

import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from common.platform.ending import as_program, exit_now, signals_as_ctrl_c
from common.platform.errors import UserError
from comparison.run.launchers import Follower
from comparison.run.launchers.job_folder import JobFolder
from comparison.run.launchers.this_machine import run_group
from comparison.run.program import Ended, Program

PROGRAM = "comparison.run.launchers.on_node"


def main(path: Path) -> int:
    """Returns the exit status: 0 even if programs have failed. The files of these programs report the failures."""
    signals_as_ctrl_c()
    folder = JobFolder(path)
    if not path.is_dir():
        raise UserError(
            f"{path}: not on {platform.node()}; --output-dir must be a folder that all machines of the cluster share"
        )
    work = folder.work()
    places = {program.run_dir: place for place, program in enumerate(work.programs)}
    left = [program for program in work.programs if not folder.has_ended(places[program.run_dir])]
    run_group(left, work.timeout, _Writer(folder, places), work.turns)
    return 0


@dataclass(frozen=True)
class _Writer(Follower):
    """A `Follower` that stores in the job's folder how its programs have ended."""

    folder: JobFolder
    places: dict[Path, int]

    def ended(self, program: Program, ended: Ended) -> None:
        if program.run_dir in self.places:  # not of the first row once more, which compare.py does not know of
            self.folder.write_ended(self.places[program.run_dir], ended)


if __name__ == "__main__":
    with as_program(PROGRAM):
        exit_now(main(Path(sys.argv[1])))
