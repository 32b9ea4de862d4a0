"""What a job of a queue runs on its machine: the programs of a job's folder, one after the other.

    python -m comparison.launchers.on_node FOLDER

A job that was taken off its machine and put back into the queue leaves out what has ended. A program that was cut off
meanwhile goes on from its latest checkpoint.
"""

import common.platform.quiet_start  # noqa: F401 - see there; isort: skip

import platform
import sys
from pathlib import Path

from common.platform.errors import UserError
from common.platform.program import as_program, exit_now, signals_as_ctrl_c
from comparison.launchers.job_folder import JobFolder
from comparison.runner import run_program

PROGRAM = "comparison.launchers.on_node"


def main(path: Path) -> int:
    """Returns the exit status: 0 also where programs have failed, which their own files tell."""
    signals_as_ctrl_c()
    folder = JobFolder(path)
    if not path.is_dir():
        raise UserError(
            f"{path}: not on {platform.node()}; --output-dir must be a folder that all machines of the cluster share"
        )
    work = folder.work()
    for place, program in enumerate(work.programs):
        if not folder.has_ended(place):
            folder.write_ended(place, run_program(program, work.timeout, lambda line: None))
    return 0


if __name__ == "__main__":
    with as_program(PROGRAM):
        exit_now(main(Path(sys.argv[1])))
