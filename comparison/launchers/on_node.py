"""The program of a queue's job: it runs the programs of the job's folder on its machine, one after the other.

    python -m comparison.launchers.on_node FOLDER

If a job was taken off its machine and put back into the queue, it skips the programs that have already ended. A program
that was interrupted continues from its latest checkpoint.
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
    """Returns the exit status: 0 even if programs have failed. The files of these programs report the failures."""
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
