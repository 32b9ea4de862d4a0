"""Marks the works of a whole class: a table on the terminal, and a CSV file with what each check has seen."""

import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator
from rich.console import Console

from common.platform.cli import parse_options, positional
from common.platform.errors import UserError
from common.platform.files import write_text
from common.platform.machine import num_cores
from exercises import sandbox, verdicts
from exercises.checking import FOLDER, NOT_DONE
from exercises.course import ACTIVITIES, nearest
from exercises.marks_table import WIDTH, cell, shown, tables, to_csv
from exercises.sandbox import Limits
from exercises.verdicts import Verdict

ABOUT = "Marks a class: FOLDER holds a sub-folder for each student, with NAME.py or NAME/exercise.py for each activity."
MAX_WORK_BYTES = 2**20
MAX_NAMED = 20  # maximum number of files that the note on unmarked files names
PROJECT, WORK = "/marked/project", "/marked/work"  # paths inside a sandbox
Report = Callable[[str], None]


class MarkOptions(BaseModel):
    """The options of `python -m exercises mark`; its --help prints all of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: Annotated[list[Path], Field(max_length=1)] = positional("FOLDER", "a sub-folder for each student")
    activities: list[str] | None = Field(None, min_length=1, description="which to mark; unset: all that occur")
    csv: Path | None = Field(None, description="file for a line per student, activity and check; unset: none")
    seconds: float = Field(300.0, gt=0, le=86400, description="limit for all checks of one work")
    memory_mib: int = Field(
        4096, ge=256, le=2**24, description="memory that all processes of one work may take, in MiB"
    )
    no_sandbox: bool = Field(False, description="true: run the works with your rights, on your files and your network")

    @field_validator("activities")
    @classmethod
    def _are_activities(cls, names: list[str] | None) -> list[str] | None:
        for name in names or ():
            if name not in ACTIVITIES:
                raise ValueError(f"{name} is no activity{nearest(name)}")
        return names

    @field_validator("csv")
    @classmethod
    def _can_be_written(cls, path: Path | None) -> Path | None:
        try:
            if path and path.is_dir():
                raise ValueError("is a folder; name a file")
            if path and not path.parent.is_dir():
                raise ValueError(f"there is no folder {path.parent}")
            if path:  # write_text's temporary file has a name of the same length
                tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", suffix=".written").close()
        except OSError as error:
            raise ValueError(f"can't be written: {error.strerror}") from None
        return path


# --- What there is to mark ---


# Why a file or folder is not marked.
NO_WORK, HIDDEN = "they are no works of an activity", 'their names begin with "." or "__pycache__"'
TOO_LARGE, UNREADABLE = "they are larger than 1 MiB", "they can't be read"


@dataclass
class Class:
    """The students' names, and their works by student and activity.

    Attributes:
      others: all other files, and folders that can't be read: for each reason their names, each with its owners.
    """

    students: list[str]
    works: dict[tuple[str, str], Path]
    others: dict[str, dict[str, list[str]]]

    def leave_out(self, reason: str, name: str, owner: str = "the class") -> None:
        self.others.setdefault(reason, {}).setdefault(name, []).append(owner)


def find(folder: Path) -> Class:
    """Finds the works of a class.

    Links are not followed: they could lead to another student's work. Hidden files are skipped.

    Raises:
      UserError: there is no such folder, it can't be read, or it has no sub-folders.
    """
    found = Class([], {}, {})
    try:
        for entry, mode in _entries(folder):
            if not stat.S_ISDIR(mode):
                if not _is_hidden(entry):
                    found.leave_out(NO_WORK, entry.name)
            elif _is_hidden(entry):
                found.leave_out(HIDDEN, entry.name)
            else:
                found.students.append(entry.name)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"FOLDER {folder}: there is no such folder") from None
    except OSError as error:
        raise UserError(f"FOLDER {folder}: can't be read: {error.strerror}") from None
    if not found.students:
        raise UserError(f"FOLDER {folder}: has no sub-folders; it needs one for each student, with the works in it")
    for student in found.students:
        _find_works(found, student, folder / student)
    return found


def _find_works(found: Class, student: str, folder: Path) -> None:
    """Adds a student's works, from the student's folder and its sub-folders. Deeper folders are not searched."""
    places = [folder]
    for place in places:
        try:
            entries = [(entry, mode) for entry, mode in _entries(place) if not _is_hidden(entry)]
        except OSError:
            found.leave_out(UNREADABLE, place.name, "the class" if place == folder else student)
            continue
        for entry, mode in entries:
            if stat.S_ISDIR(mode) and place == folder:
                places.append(entry)
                continue
            name = str(entry.relative_to(folder))
            activity = entry.stem if place == folder else place.name
            is_work = activity in ACTIVITIES and name in (f"{activity}.py", f"{activity}/exercise.py")
            if not is_work or not stat.S_ISREG(mode) or (student, activity) in found.works:
                found.leave_out(NO_WORK, name, student)
            elif entry.lstat().st_size > MAX_WORK_BYTES:
                found.leave_out(TOO_LARGE, name, student)
            else:
                found.works[student, activity] = entry


def _entries(folder: Path) -> list[tuple[Path, int]]:
    """The entries of a folder in order, each with its mode; links are not followed."""
    return [(entry, entry.lstat().st_mode) for entry in sorted(folder.iterdir())]


def _is_hidden(path: Path) -> bool:
    return path.name.startswith((".", "__pycache__"))


# --- Marking ---


def mark_work(
    activity: str, work: Path, limits: Limits, sandboxed: bool, stop: threading.Event, hidden: Sequence[Path] = ()
) -> list[Verdict]:
    """A verdict for each check of the activity, whatever the work does.

    The sandbox contains the checker, the checks and the work. It contains no solution and nothing of another student.

    Args:
      hidden: folders that it must not contain, besides this project.
    """
    with tempfile.TemporaryDirectory(prefix="mark-") as name, tempfile.TemporaryFile() as result:
        folder = Path(name)
        copied = folder / "work" / f"{activity}.py"
        copied.parent.mkdir()
        shutil.copyfile(work, copied, follow_symlinks=False)
        inside = {FOLDER.parent / "common": f"{PROJECT}/common", _checker(folder, activity): f"{PROJECT}/exercises"}
        inside[copied.parent] = WORK
        for path in (copied.parent, copied):
            path.chmod(0o755)
        file = f"{WORK}/{copied.name}" if sandboxed else str(copied)
        command = [sys.executable, "-m", "exercises", "check-json", activity, file, str(result.fileno())]
        start = PROJECT if sandboxed else str(FOLDER.parent)
        ended = sandbox.run(command, start, inside, limits, [FOLDER.parent, *hidden], stop, result, sandboxed)
        result.seek(0)
        return verdicts.read(result.read(verdicts.MAX_BYTES), activity, ended)


def _checker(folder: Path, activity: str) -> Path:
    """Makes a folder `exercises` with the checker and the checks of one activity, without solutions and pages."""
    place = folder / "exercises"
    (place / activity).mkdir(parents=True)
    for path in [*FOLDER.glob("*.py"), FOLDER / activity / "check.py"]:
        copied = place / path.relative_to(FOLDER)
        shutil.copyfile(path, copied)
        copied.chmod(0o644)
    for path in (place, place / activity):
        path.chmod(0o755)
    return place


def check_the_checks(activities: Sequence[str], limits: Limits, sandboxed: bool) -> None:
    """Raises UserError if the solution of an activity does not pass its checks on this machine, within these limits."""
    for activity in activities:
        marks = mark_work(activity, FOLDER / activity / "solution.py", limits, sandboxed, threading.Event())
        if trouble := next((mark for mark in marks if mark.status != "passed"), None):
            passed = sum(mark.status == "passed" for mark in marks)
            raise UserError(
                f"nothing is marked: the solution of {activity} itself passes {passed} of its {len(marks)} checks here,"
                f" with --memory-mib {limits.memory_mib} and --seconds {limits.seconds:g}: {trouble.seen}"
            )


def mark_class(
    folder: Path, found: Class, activities: Sequence[str], limits: Limits, sandboxed: bool, report: Report
) -> dict[tuple[str, str], list[Verdict]]:
    """The verdicts of all works. Marks as many at a time as there are cores, and calls `report` with a line on each.

    A work that ran out of time is marked once more, alone.
    """
    stop = threading.Event()
    wanted = [(student, activity) for student in found.students for activity in activities]

    def one(key: tuple[str, str]) -> list[Verdict]:
        if stop.is_set():
            return []
        try:
            marks = mark_work(key[1], found.works[key], limits, sandboxed, stop, [folder])
        except OSError as error:
            text = f"the work can not be read: {error.strerror}".encode(errors="replace").decode()
            marks = [Verdict(check=name, status="not run", seen=text) for name in verdicts.titles(key[1])]
        report(f"{key[0]}: {key[1]}: {cell(marks)}")
        return marks

    keys = [key for key in wanted if key in found.works]
    pool = ThreadPoolExecutor(num_cores())
    try:
        marks = dict(zip(keys, pool.map(one, keys), strict=True))
        late = [key for key in keys if any(NOT_DONE in each.seen for each in marks[key])]
        return marks | {key: one(key) for key in late if len(keys) > 1}
    finally:
        stop.set()  # in case of Ctrl-C
        pool.shutdown(cancel_futures=True)


# --- The command ---


def main(arguments: Sequence[str]) -> int:
    """Marks a class as the command line says; 0 if all works have a mark, else 1.

    Raises:
      UserError: a mistake in the options, or nothing can be marked on this machine.
    """
    options = parse_options(MarkOptions, "python -m exercises mark", ABOUT, arguments)
    found = find(options.folder[0])
    occurring = [name for name in ACTIVITIES if any(activity == name for _, activity in found.works)]
    activities = [name for name in ACTIVITIES if name in options.activities] if options.activities else occurring
    if not activities:
        raise UserError(f"FOLDER {options.folder[0]}: holds no work, STUDENT/NAME.py or STUDENT/NAME/exercise.py")
    limits = Limits(seconds=options.seconds, memory_mib=options.memory_mib)
    notes = Console(stderr=True, width=WIDTH, highlight=False, markup=False, soft_wrap=True)
    if options.no_sandbox:
        notes.print("warning: --no-sandbox true: the works run with your rights; they can read and change your files")
    else:
        sandbox.check_available()
    check_the_checks(activities, limits, not options.no_sandbox)
    marks = mark_class(
        options.folder[0], found, activities, limits, not options.no_sandbox, lambda line: notes.print(shown(line))
    )
    out = Console(width=WIDTH, highlight=False, markup=False)
    for number, table in enumerate(tables(found.students, activities, marks)):
        out.print(*([""] * (number > 0)), table, sep="\n")
    if options.csv:
        write_text(options.csv, to_csv(found.students, activities, marks))
        out.print(shown(f"{options.csv}: written"), soft_wrap=True)
    for reason, others in found.others.items():
        notes.print(shown(f"note: not marked, since {reason}: {_named(others)}"))
    if without := [f"{student}: {name}" for (student, name), results in marks.items() if cell(results) == "not run"]:
        notes.print(shown(f"note: without a mark, since not all checks could be run: {', '.join(without)}"))
    return 1 if without or found.others.keys() & {TOO_LARGE, UNREADABLE} else 0


def _named(others: dict[str, list[str]]) -> str:
    """The files with their owners: `notes.txt (anna), README.md (12 students)`."""
    texts = [
        f"{name} ({owners[0] if len(owners) == 1 else f'{len(owners)} students'})" for name, owners in others.items()
    ]
    return ", ".join(texts[:MAX_NAMED]) + (f" and {len(texts) - MAX_NAMED} more" if len(texts) > MAX_NAMED else "")
