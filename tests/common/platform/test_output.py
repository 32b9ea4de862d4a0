"""A program goes on when it can't print any more, and says so once."""

import subprocess
import sys

import pytest
from conftest import REPOSITORY

PROGRAM = """
import sys, time
from pathlib import Path
from rich.console import Console
from common.platform.program import as_program
with as_program("program"):
    for number in range(3):
        Console().print("line", number)
        print("and", number, flush=True)
        while not Path(sys.argv[2]).exists():
            time.sleep(0.01)
    Path(sys.argv[1]).touch()
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("redirected", "status", "said"),
    [
        ('| { read -r line; exec <&-; touch "$3"; }', 0, "program: prints no more: Broken pipe\n"),
        ("> /dev/full", 1, "program: prints no more: No space left on device\n"),
        ("<&- >&-", 0, ""),
        ("<&- >&- 2>&-", 0, ""),
        ("2> /dev/full", 0, ""),
    ],
)
def test_a_program_ends_as_usual_whatever_its_output_does(tmp_path, redirected, status, said, unbuffered):
    command = f'"$0" -c "$1" "$2" "$3" {redirected}; exit ${{PIPESTATUS[0]}}'
    reader_is_gone = tmp_path / "gone"
    if "|" not in redirected:
        reader_is_gone.touch()
    done = subprocess.run(
        ["bash", "-c", command, sys.executable, PROGRAM, str(tmp_path / "done"), str(reader_is_gone)],
        env={"PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": unbuffered, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (status, said) and (tmp_path / "done").exists()
