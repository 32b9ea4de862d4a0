"""Marks the works of a whole class: a table on the terminal, and a folder with a grade book and all that was seen."""

import difflib
import hashlib
import json
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
from exercises.marks_table import WIDTH, cell, shown, tables, to_csv, to_feedback, to_grades
from exercises.sandbox import Limits
from exercises.verdicts import Marks, Verdict, to_junit

ABOUT = "Marks a class: FOLDER holds a sub-folder for each student, with NAME.py or NAME/exercise.py for each activity."
MAX_WORK_BYTES = 2**20
MAX_NAMED = 20  # maximum number of files that the note on unmarked files names
PROJECT, WORK = "/marked/project", "/marked/work"  # paths inside a sandbox


class MarkOptions(BaseModel):
    """The options of `python -m exercises mark`; its --help prints all of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: Annotated[list[Path], Field(max_length=1)] = positional("FOLDER", "a sub-folder for each student")
    activities: list[str] | None = Field(None, min_length=1, description="which to mark; unset: all that occur")
    students: list[str] | None = Field(
        None, min_length=1, description="whom to mark, also those who have a mark in --results; unset: all others"
    )
    results: Path | None = Field(
        None, description="folder for grade book, details and feedback; works that it has marks of are not marked again"
    )
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
                found.leave_out(NO_WORK, f"{name}{_meant(entry)}", student)
            elif entry.lstat().st_size > MAX_WORK_BYTES:
                found.leave_out(TOO_LARGE, name, student)
            else:
                found.works[student, activity] = entry


def _meant(path: Path) -> str:
    """For a misnamed work: ` (sampler.py?)`."""
    near = difflib.get_close_matches(path.stem.lower(), ACTIVITIES, n=1, cutoff=0.7)
    return f" ({near[0]}.py?)" if near and path.suffix == ".py" and path.stem != near[0] else ""


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
    hidden: Sequence[Path],
    works: dict[tuple[str, str], Path],
    limits: Limits,
    sandboxed: bool,
    report: Callable[[tuple[str, str], list[Verdict]], None],
) -> None:
    """Marks works by student and activity, as many at a time as there are cores, and reports the verdicts of each.

    A work that ran out of time is marked once more, alone.

    Args:
      hidden: folders that no work may see.
    """
    stop = threading.Event()

    def one(key: tuple[str, str]) -> list[Verdict]:
        if stop.is_set():
            return []
        try:
            marks = mark_work(key[1], works[key], limits, sandboxed, stop, hidden)
        except OSError as error:
            text = f"the work can not be read: {error.strerror}".encode(errors="replace").decode()
            marks = [Verdict(check=name, status="not run", seen=text) for name in verdicts.titles(key[1])]
        if not stop.is_set():
            report(key, marks)
        return marks

    pool = ThreadPoolExecutor(num_cores())
    try:
        marks = dict(zip(works, pool.map(one, works), strict=True))
        for key in works:
            if len(works) > 1 and any(NOT_DONE in each.seen for each in marks[key]):
                one(key)
    finally:
        stop.set()  # in case of Ctrl-C
        pool.shutdown(cancel_futures=True)


# --- The folder of results ---


class Results:
    """The marks of a class, kept in a folder as soon as they are there.

    `marks.jsonl` has a line for each work that was marked; the last one of a work counts. From these lines come
    `grades.csv`, `checks.csv`, `junit.xml` and `feedback/STUDENT.txt`.

    Attributes:
      marks: by student and activity, of the works as they are now.
    """

    def __init__(self, folder: Path | None, found: Class, activities: Sequence[str]) -> None:
        self.folder, self.students, self.activities = folder, found.students, activities
        self.marks: dict[tuple[str, str], list[Verdict]] = {}
        self._lock = threading.Lock()
        wanted = {key: work for key, work in found.works.items() if key[1] in activities}
        self._digests = {key: _digest(key[1], work) for key, work in wanted.items()}
        path = folder and folder / "marks.jsonl"
        for line in path.read_text(encoding="utf-8").splitlines() if path and path.exists() else []:
            try:
                stored = json.loads(line)
                key = stored["student"], stored["activity"]
                if self._digests.get(key) == stored["sha256"]:
                    self.marks[key] = [Verdict(**verdict) for verdict in stored["verdicts"]]
            except (ValueError, KeyError, TypeError):  # cut off when the computer was; the work is marked again
                continue

    def add(self, key: tuple[str, str], found: list[Verdict]) -> None:
        with self._lock:
            self.marks[key] = found
            if self.folder is None or cell(found) == "not run":
                return
            seen = [verdict.model_dump() for verdict in found]
            line = {"student": key[0], "activity": key[1], "sha256": self._digests[key], "verdicts": seen}
            with open(self.folder / "marks.jsonl", "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(json.dumps(line) + "\n")
            self.write(key[0])

    def write(self, *students: str) -> None:
        """Writes the grade book, the details, and the feedback for these students."""
        if self.folder is None:
            return
        marks: Marks = {key: self.marks[key] for key in self._digests if key in self.marks}
        byte_order_mark = "\ufeff"  # by which Excel knows UTF-8
        write_text(self.folder / "grades.csv", byte_order_mark + to_grades(self.students, self.activities, marks))
        write_text(self.folder / "checks.csv", byte_order_mark + to_csv(self.students, self.activities, marks))
        write_text(self.folder / "junit.xml", to_junit(marks))
        for student in students:
            write_text(self.folder / "feedback" / f"{student}.txt", to_feedback(student, self.activities, marks))


def _digest(activity: str, work: Path) -> str:
    """Of a work and of what checks it."""
    try:
        parts = [path.read_bytes() for path in (work, FOLDER / activity / "check.py", FOLDER / "checking.py")]
    except OSError:
        return ""
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


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
    if unknown := [name for name in options.students or () if name not in found.students]:
        raise UserError(f"--students {unknown[0]}: FOLDER {options.folder[0]} has no such sub-folder")
    try:
        if options.results:
            if options.folder[0].resolve() in options.results.resolve().parents:
                raise UserError(f"--results {options.results}: lies in FOLDER, whose sub-folders are those of students")
            (options.results / "feedback").mkdir(parents=True, exist_ok=True)
            tempfile.NamedTemporaryFile(dir=options.results).close()
    except OSError as error:
        raise UserError(f"--results {options.results}: can't be written: {error.strerror}") from None
    limits = Limits(seconds=options.seconds, memory_mib=options.memory_mib)
    notes = Console(stderr=True, width=WIDTH, highlight=False, markup=False, soft_wrap=True)
    if options.no_sandbox:
        notes.print("warning: --no-sandbox true: the works run with your rights; they can read and change your files")
    else:
        sandbox.check_available()
    check_the_checks(activities, limits, not options.no_sandbox)
    results = Results(options.results, found, activities)
    again = options.students or ()
    works = {
        key: work
        for key, work in found.works.items()
        if key[1] in activities and (key[0] in again if again else key not in results.marks)
    }

    def report(key: tuple[str, str], marks: list[Verdict]) -> None:
        results.add(key, marks)
        notes.print(shown(f"{key[0]}: {key[1]}: {cell(marks)}"))

    hidden = [options.folder[0], *([options.results] if options.results else [])]
    mark_class(hidden, works, limits, not options.no_sandbox, report)
    marks = results.marks
    out = Console(width=WIDTH, highlight=False, markup=False)
    for number, table in enumerate(tables(found.students, activities, marks)):
        out.print(*([""] * (number > 0)), table, sep="\n")
    if options.results:
        results.write(*found.students)
        out.print(shown(f"{options.results}: grades.csv, checks.csv, junit.xml, feedback"), soft_wrap=True)
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
