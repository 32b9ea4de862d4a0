"""The folder of a job of a queue: what it is to run, its number in the queue, and how each program ended.

`DIR/jobs/RUN`, where RUN is the folder of its first run, in a comparison's folder DIR that all machines share. A job
goes on when compare.py has gone, and the next compare.py finds here all that it needs to follow it.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from common.platform.files import read_model, write_model, writing
from comparison.launchers import Group
from comparison.program import Ended, Program

JOBS_DIR = "jobs"
WORK_FILE, NUMBER_FILE, OUTPUT_FILE = "job.json", "submitted.json", "output.txt"


class Work(BaseModel):
    """`job.json`: what a job runs, one after the other."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    programs: list[Program]
    timeout: float


class Submitted(BaseModel):
    """`submitted.json`: the job's number, or name, in the queue of a launcher."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    launcher: str
    number: str


@dataclass(frozen=True)
class JobFolder:
    """One of them; see the module."""

    path: Path

    @classmethod
    def make(cls, comparison: Path, group: Group, timeout: float) -> "JobFolder":
        """A new one, in place of what was there. Raises FileError where it can't be written."""
        folder = cls(comparison.absolute() / JOBS_DIR / group[0].run_dir.relative_to(comparison.absolute()))
        with writing(folder.path):
            shutil.rmtree(folder.path, ignore_errors=True)
            folder.path.mkdir(parents=True)
        write_model(folder.path / WORK_FILE, Work(programs=list(group), timeout=timeout))
        return folder

    @classmethod
    def all_of(cls, comparison: Path) -> list["JobFolder"]:
        """Those of the comparison that were handed to a queue."""
        return [cls(path.parent) for path in sorted((comparison.absolute() / JOBS_DIR).rglob(NUMBER_FILE))]

    def work(self) -> Work:
        return read_model(Work, self.path / WORK_FILE)

    def submitted(self) -> Submitted:
        return read_model(Submitted, self.path / NUMBER_FILE)

    def mark_submitted(self, launcher: str, number: str) -> None:
        write_model(self.path / NUMBER_FILE, Submitted(launcher=launcher, number=number))

    def write_ended(self, place: int, ended: Ended) -> None:
        """By the job: how the program at `place`, from 0, has ended."""
        write_model(self._ended(place), ended)

    def ended(self, place: int) -> Ended | None:
        """How it has ended, as long as nobody has taken note; None before and after."""
        # Looking into the folder makes network disks ask again whether a file is there.
        if self._ended(place).name not in [path.name for path in self.path.iterdir()]:
            return None
        return read_model(Ended, self._ended(place))

    def take_note(self, place: int) -> None:
        """The run has its own record now. What says that it has ended stays, under another name."""
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
        """Whether the job has no more to run."""
        return all(map(self.has_ended, range(len(self.work().programs))))

    def _ended(self, place: int) -> Path:
        return self.path / f"ended-{place}.json"

    def _noted(self, place: int) -> Path:
        return self.path / f"noted-{place}.json"


def finished(comparison: Path) -> dict[Path, tuple[JobFolder, int]]:
    """Run folder -> job and place of what has ended since compare.py itself has, so that it has no record yet."""
    return {
        program.run_dir: (folder, place)
        for folder in JobFolder.all_of(comparison)
        for place, program in enumerate(folder.work().programs)
        if folder.ended(place) is not None
    }
