"""python -m exercises: lists the activities, starts one, checks works, and makes the copy for students."""

import common.platform.quiet_start  # noqa: F401 - see there; isort: skip

import argparse
import subprocess
import sys
from pathlib import Path

from common.platform.ending import as_program
from common.platform.errors import UserError
from exercises.course import ACTIVITIES, FOLDER, PROJECT, load_factor, release, start_text


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m exercises", description="The activities of the course.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the activities, in order")
    start = commands.add_parser("start", help="write NAME.py, with gaps to be filled, into this folder")
    start.add_argument("name", choices=ACTIVITIES, metavar="NAME")
    check = commands.add_parser("check", help="check a work: a line for each check, and a hint where it fails")
    which = check.add_mutually_exclusive_group(required=True)
    which.add_argument("name", nargs="?", choices=ACTIVITIES, metavar="NAME")
    which.add_argument("--all", action="store_true", help="check the solutions of all activities")
    check.add_argument("file", nargs="?", type=Path, metavar="FILE", help="the work; by default NAME.py in this folder")
    check.add_argument("--junit", type=Path, metavar="FILE", help="write the results as JUnit XML, too")
    copy = commands.add_parser("release", help="for instructors: copy the project without solutions and answers")
    copy.add_argument("folder", type=Path, metavar="DIR", help="a new folder")
    options = parser.parse_args()
    if options.command == "check" and options.all and options.junit:
        check.error(f"--junit {options.junit}: goes with one activity alone")
    return options


def start(name: str) -> None:
    try:
        with open(f"{name}.py", "x", encoding="utf-8") as file:
            file.write(start_text(name))
    except FileExistsError:
        raise UserError(f"start {name}: {name}.py exists and is left as it is; rename it to start again") from None
    print(f"{name}.py is written. Fill its gaps, then: python -m exercises check {name}")


def check(name: str, work: Path, junit: Path | None = None) -> bool:
    """Runs an activity's checks on a file in a process of their own; returns whether all have passed."""
    if not work.is_file():
        written = f"python -m exercises start {name} writes {name}.py"
        raise UserError(f"check {name}: {work}: there is no such file ({written})")
    print(f"{name}: {work}", flush=True)
    limit = [f"--timeout={60 * load_factor():.0f}", "--timeout-method=signal"]  # for work that never ends
    words = "-qq -rN --tb=short -p no:warnings -p no:cacheprovider -o addopts= -o console_output_style=classic --brief"
    results = [f"--junit-xml={junit.resolve()}"] if junit else []
    files = [f"--work={work.resolve()}", str(FOLDER / name / "test_work.py")]
    command = [sys.executable, "-m", "pytest", *words.split(), *limit, *results, *files]
    return subprocess.run(command, cwd=PROJECT, check=False).returncode == 0


def main() -> int:
    options = parse()
    if options.command == "list":
        for name in ACTIVITIES:
            title = (FOLDER / name / "README.md").read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
            print(f"{name:<22} {title}")
    elif options.command == "start":
        start(options.name)
    elif options.command == "release":
        print(f"{options.folder}: {release(options.folder.resolve())} files")
    elif options.all:
        passed = [check(name, FOLDER / name / "work.py") for name in ACTIVITIES]
        print(f"{sum(passed)} of {len(passed)} activities passed")
        return int(not all(passed))
    else:
        return int(not check(options.name, options.file or Path(f"{options.name}.py"), options.junit))
    return 0


if __name__ == "__main__":
    with as_program("python -m exercises"):
        sys.exit(main())
