"""python -m exercises: lists the activities, and checks the works of students."""

import common.platform.quiet_start  # noqa: F401 - see there; isort: skip

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common.platform.ending import as_program, signals_as_ctrl_c
from common.platform.errors import UserError
from common.platform.machine import num_cores
from exercises import verdicts
from exercises.checking import FOLDER
from exercises.course import ACTIVITIES, PROGRAMS, mark, nearest, prove, prove_program

STUDENTS_COPY = "this is a student's copy of the course: it has no solutions, and nothing for instructors"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m exercises", description="The activities and their checker.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="{list,check,mark,student-copy}")
    commands.add_parser("list", help="the activities, in order")
    check = commands.add_parser("check", help="mark a work: what passes, what fails, a hint for each")
    check.add_argument("names", nargs="*", metavar="NAME", help="an activity; several if you like")
    check.add_argument("--all", action="store_true", help="every activity")
    check.add_argument("--file", type=Path, help="the work, if it is not the activity's exercise.py")
    check.add_argument("--junit", type=Path, metavar="FILE", help="write the results of one activity as JUnit XML, too")
    check.add_argument(
        "--solutions", action="store_true", help="for instructors: that solutions pass and wrong ones are rejected"
    )
    commands.add_parser("mark", help="for instructors: mark the works of a whole class (mark --help)", add_help=False)
    copy = commands.add_parser("student-copy", help="for instructors: a copy of the project without the answers")
    copy.add_argument("folder", type=Path, metavar="DIR", help="a new folder")
    options = parser.parse_args(arguments)
    if options.command == "check":
        for name in options.names:
            if name not in ACTIVITIES:
                check.error(f"{name}: no such activity{nearest(name)}")
        if bool(options.names) == options.all:
            check.error("name an activity, or give --all")
        for name in ("file", "junit"):
            value = getattr(options, name)
            if value and (len(options.names) != 1 or options.solutions):
                check.error(f"--{name} {value}: goes with one activity alone, and without --solutions")
        if options.file and not _is_file(options.file):
            check.error(f"--file {options.file}: there is no such file, or it can't be read")
        if options.file and options.file.suffix != ".py":
            check.error(f"--file {options.file}: must be a Python file, NAME.py")
    return options


def _is_file(path: Path) -> bool:
    try:
        return path.is_file() and os.access(path, os.R_OK)
    except OSError:  # the name is too long, for example
        return False


def main() -> int:
    word, *rest = sys.argv[1:] or [""]
    is_copy = not (FOLDER / "instructors.md").exists()
    if is_copy and word in ("mark", "student-copy"):
        raise UserError(STUDENTS_COPY)
    if word == "mark":
        from exercises import marking

        return marking.main(rest)
    if word == "check-json" and len(rest) == 3:  # `mark` starts this command in a sandbox
        verdicts.write(rest[0], Path(rest[1]), int(rest[2]))
        return 0
    options = parse()
    if is_copy and options.command == "check" and options.solutions:
        raise UserError(STUDENTS_COPY)
    if options.command == "student-copy":
        from exercises.student_copy import make_student_copy

        print(f"{options.folder}: {make_student_copy(options.folder.resolve())} files")
        return 0
    if options.command == "list":
        for name in ACTIVITIES:
            title = (FOLDER / name / "README.md").read_text().partition("\n")[0].removeprefix("# ")
            print(f"{name:<22} {title}")
        return 0
    names = list(ACTIVITIES) if options.all else options.names
    if len(names) == 1:
        if options.solutions:
            return not prove(names[0])
        return not _check(names[0], (options.file or FOLDER / names[0] / "exercise.py").resolve(), options.junit)
    return not _each_alone(names, options.solutions, programs=options.all and options.solutions)


def _check(name: str, work: Path, junit: Path | None) -> bool:
    """Checks one work; True if all checks have passed. UserError: `junit` can't be written."""
    if junit:
        _write(junit, "")  # old results must not stay if the work ends the checker
    found = mark(name, work)
    if junit:
        marks = [
            verdicts.Verdict(check=check, status=one.status, seen=one.what[: verdicts.MAX_LETTERS])
            for check, one in found.items()
        ]
        _write(junit, verdicts.to_junit({(work.stem, name): marks}))
    return all(seen.status == "passed" for seen in found.values())


def _write(junit: Path, text: str) -> None:
    try:
        junit.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--junit {junit}: can't be written: {error.strerror}") from None


def _each_alone(names: list[str], solutions: bool, programs: bool) -> bool:
    """Checks each activity in its own process, since two frameworks can not share one; True if all passed."""

    def one(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "exercises", "check", name, *(["--solutions"] if solutions else [])]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    passed = True
    with ThreadPoolExecutor(num_cores()) as pool:
        for done in pool.map(one, names):
            print(done.stdout, end="" if solutions else "\n", flush=True)
            print(done.stderr, end="", file=sys.stderr, flush=True)
            passed &= done.returncode == 0
    for command in PROGRAMS if programs else ():
        passed &= prove_program(command)
    return passed


if __name__ == "__main__":
    with as_program("python -m exercises"):
        signals_as_ctrl_c()
        sys.exit(main())
