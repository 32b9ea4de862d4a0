"""The course: its activities in order, the file that a student starts from, and the copy for students."""

import os
import re
import shutil
import subprocess
from itertools import count
from pathlib import Path

from common.platform.errors import UserError
from common.platform.machine import num_cores

FOLDER = Path(__file__).resolve().parent
PROJECT = FOLDER.parent
ACTIVITIES = (
    *("one_device", "ddp", "mirrored_strategy", "to_lightning", "sampler", "rank_zero", "tracking", "float_formats"),
    *("gradient_accumulation", "batch_norm", "checkpoints", "preempted_job", "model_parallelism", "sharding"),
    *("two_nodes", "scaling", "input_pipeline", "batch_size"),
)
SOLUTION = re.compile(r"^( *)### BEGIN SOLUTION\n.*?^\1### END SOLUTION\n", re.MULTILINE | re.DOTALL)
# What students do not get, and what no page of theirs may link to. The checks do not give a solution away.
FOR_INSTRUCTORS = re.compile(
    r"(tests|\.ci|\.github|exercises/slides)/.*|\.pre-commit-config\.yaml"
    r"|exercises/(\w+_answers|instructors)\.md|exercises/\w+/(answers\.md|variants\.yaml)"
)


def load_factor() -> float:
    """How many times as long as on a quiet machine something may take now: by the processes that want to run."""
    return max(1.0, os.getloadavg()[0] / num_cores())


def start_text(name: str) -> str:
    """The work of an activity with its solutions replaced by gaps: `raise NotImplementedError("gap 1")`, ..."""
    text, numbers = (FOLDER / name / "work.py").read_text(encoding="utf-8"), count(1)
    return SOLUTION.sub(lambda match: f'{match[1]}raise NotImplementedError("gap {next(numbers)}")\n', text)


def release(folder: Path) -> int:
    """Copies the project without answers into a new folder, with starts instead of works; returns the number of files.

    Raises:
      UserError: the folder is not empty or is in the project, or the project is not a git checkout.
    """
    if folder.is_relative_to(PROJECT) or (folder.exists() and any(folder.iterdir())):
        raise UserError(f"release {folder}: must be a new folder outside the project")
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, check=True).stdout
    except subprocess.CalledProcessError:
        raise UserError(f"release: {PROJECT} is not a git checkout, so its files can't be listed") from None
    names = [name for name in listed.decode().split("\0") if name and not FOR_INSTRUCTORS.fullmatch(name)]
    for name in names:
        source, target = PROJECT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.name == "work.py":
            target.write_text(start_text(source.parent.name), encoding="utf-8")
        else:
            shutil.copy2(source, target)
    return len(names)
