"""`--launcher slurm`: submits each group as a job to Slurm, with `sbatch`.

It does not use submitit, which is made for calling functions. submitit pickles the functions and their results, and
asks `sacct` for the state of a job. `sacct` needs the accounting database, which small clusters lack. The jobs here run
a command line, and files say how it ended.
"""

import math
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.platform.errors import UserError
from common.platform.processes import ENVIRONMENT
from comparison.run.launchers import Group
from comparison.run.launchers.job_folder import OUTPUT_FILE
from comparison.run.program import Program
from comparison.run.runner import with_our_code

COMMANDS = ("sbatch", "squeue", "scancel", "scontrol")
SPARE_MINUTES = 2  # added to the time limits of a job's programs, for the time limit of the job


def slurm_path_pattern(path: Path) -> str:
    """The path as a filename pattern of sbatch(1), in which %j, for one, means the number of the job."""
    return str(path) if "\\" in str(path) else str(path).replace("%", "%%")


@dataclass(frozen=True)
class Slurm:
    """A `Queue` for Slurm. `options`: for sbatch; they override the options that this class sets."""

    options: str = "--exclusive"  # whole nodes, so that the load of other jobs does not disturb the times
    name = "slurm"
    title = "Slurm"

    def check(self) -> None:
        """Raises UserError if jobs can't be submitted from this machine."""
        for command in COMMANDS:
            if shutil.which(command) is None:
                raise UserError(
                    f"--launcher slurm: no {command} on this machine; run it on a login node of the cluster"
                )

    def submit(self, folder: Path, group: Group, timeout: float) -> str:
        config, tasks = group[0].config, max(program.processes_per_node for program in group)
        words = [
            *(
                "sbatch",
                "--parsable",
                "--requeue",
                "--open-mode=append",
                f"--output={slurm_path_pattern(folder / OUTPUT_FILE)}",
            ),
            *(f"--job-name={'-'.join(group[0].run_dir.parts[-3:-1])}", f"--chdir={Path.cwd()}"),
            *(f"--nodes={config.nodes}", f"--ntasks-per-node={tasks}"),
            f"--time={math.ceil(timeout * len(group) / 60) + SPARE_MINUTES}",
        ]
        if config.accelerator == "gpu" and config.devices != "auto":
            words.append(f"--gpus-per-node={config.devices}")
        command = [sys.executable, "-m", "comparison.run.launchers.on_node", str(folder)]
        script = f"#!/bin/sh\nexec {shlex.join(command)}\n"
        # compare.py may itself run in a job of Slurm. Of that job's variables only SLURM_CONF is passed on.
        kept = {
            name: value for name, value in ENVIRONMENT.items() if name == "SLURM_CONF" or not name.startswith("SLURM_")
        }
        done = subprocess.run(
            [*words, *shlex.split(self.options)], input=script, env=with_our_code(kept), capture_output=True, text=True
        )
        if done.returncode:
            errors = done.stderr.strip().splitlines() or [f"sbatch: exit status {done.returncode}"]
            raise UserError(f"--launcher slurm: {'; '.join(errors)}")
        return done.stdout.strip().partition(";")[0]  # NUMBER;CLUSTER if there are several clusters

    def starter(self, program: Program) -> tuple[str, ...]:
        config = program.config
        if config.nodes == 1:
            return ()  # the program starts its own processes
        threads = () if config.threads_per_device == "auto" else (f"--cpus-per-task={config.threads_per_device}",)
        tasks = f"--ntasks-per-node={program.processes_per_node}"
        return ("srun", f"--nodes={config.nodes}", tasks, "--cpu-bind=none", "--kill-on-bad-exit=1", *threads)

    def states(self, numbers: Sequence[str]) -> dict[str, str] | None:
        answer = _ask("squeue", "--me", "--noheader", "--format=%i %T")
        if answer is None:
            return None
        states = dict(line.split(maxsplit=1) for line in answer.splitlines())
        return {number: states[number] for number in numbers if number in states}

    def how_it_ended(self, number: str) -> str:
        shown = _ask("scontrol", "--oneliner", "show", "job", number)
        fields = dict(word.partition("=")[::2] for word in (shown or "").split())
        if "JobState" not in fields:
            return "has ended, and Slurm no longer knows how"
        status = f" with status {fields['ExitCode'].replace(':', ', signal ')}" if "ExitCode" in fields else ""
        return f"has ended as {fields['JobState']}{status}"

    def cancel(self, numbers: Sequence[str]) -> None:
        subprocess.run(["scancel", *numbers], capture_output=True)


def _ask(*words: str) -> str | None:
    """The output of a command; None if it fails."""
    done = subprocess.run(words, env=dict(os.environ), capture_output=True, text=True)
    return None if done.returncode else done.stdout
