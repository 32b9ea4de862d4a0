"""The folder of a queue's job: the programs to run, the job's number in the queue, and how each program ended.

The folder is `DIR/jobs/RUN`. DIR is the comparison's folder, which all machines share. RUN is the folder of the job's
first run. A job continues after compare.py has ended. The next compare.py finds in this folder all that it needs to
follow the job.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from common.platform.files import read_json_model, write_json_model, writing
from comparison.run.launchers import Group
from comparison.run.program import Ended, Program

JOBS_DIR = "jobs"
WORK_FILE, NUMBER_FILE, OUTPUT_FILE = "job.json", "submitted.json", "output.txt"


class Work(BaseModel):
    """`job.json`: the programs that a job runs; `turns`: in turns instead of one after the other."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    programs: list[Program]
    timeout: float
    turns: bool


class Submitted(BaseModel):
    """`submitted.json`: the job's number, or name, in the queue of a launcher."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    launcher: str
    number: str


@dataclass(frozen=True)
class JobFolder:
    """The folder of a job; see the docstring of this module."""

    path: Path

    @classmethod
    def make(cls, comparison: Path, group: Group, timeout: float, turns: bool) -> "JobFolder":
        """Makes a new folder and removes an older one. Raises FileError if it can't be written."""
        folder = cls(comparison.absolute() / JOBS_DIR / group[0].run_dir.relative_to(comparison.absolute()))
        with writing(folder.path):
            shutil.rmtree(folder.path, ignore_errors=True)
            folder.path.mkdir(parents=True)
        write_json_model(folder.path / WORK_FILE, Work(programs=list(group), timeout=timeout, turns=turns))
        return folder

    @classmethod
    def all_of(cls, comparison: Path) -> list["JobFolder"]:
        """The folders of all jobs of the comparison that were submitted to a queue."""
        return [cls(path.parent) for path in sorted((comparison.absolute() / JOBS_DIR).rglob(NUMBER_FILE))]

    def work(self) -> Work:
        return read_json_model(Work, self.path / WORK_FILE)

    def submitted(self) -> Submitted:
        return read_json_model(Submitted, self.path / NUMBER_FILE)

    def mark_submitted(self, launcher: str, number: str) -> None:
        write_json_model(self.path / NUMBER_FILE, Submitted(launcher=launcher, number=number))

    def write_ended(self, place: int, ended: Ended) -> None:
        """Called by the job: stores how the program at `place`, counted from 0, has ended."""
        write_json_model(self._ended(place), ended)

    def ended(self, place: int) -> Ended | None:
        """How the program has ended; None before its end, and None again after `take_note`."""
        # Listing the folder makes network disks check again whether a file is there.
        if self._ended(place).name not in [path.name for path in self.path.iterdir()]:
            return None
        return read_json_model(Ended, self._ended(place))

    def take_note(self, place: int) -> None:
        """Renames the file that says how the program has ended: the run has its own record now."""
        self._ended(place).rename(self._noted(place))

    def has_ended(self, place: int) -> bool:
        return self._ended(place).exists() or self.is_noted(place)

    def is_noted(self, place: int) -> bool:
        return self._noted(place).exists()

    def last_output(self) -> str:
        """The last line that the job itself has printed."""
        output = self.path / OUTPUT_FILE
        lines = output.read_text(errors="replace").split("\n") if output.exists() else []
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    @property
    def is_done(self) -> bool:
        """Whether all programs of the job have ended."""
        return all(map(self.has_ended, range(len(self.work().programs))))

    def _ended(self, place: int) -> Path:
        return self.path / f"ended-{place}.json"

    def _noted(self, place: int) -> Path:
        return self.path / f"noted-{place}.json"


def finished(comparison: Path) -> dict[Path, tuple[JobFolder, int]]:
    """Run folder -> job and place, for each program that has no record yet because it ended after compare.py."""
    return {
        program.run_dir: (folder, place)
        for folder in JobFolder.all_of(comparison)
        for place, program in enumerate(folder.work().programs)
        if folder.ended(place) is not None
    }
