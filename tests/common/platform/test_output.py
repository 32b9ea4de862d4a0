"""A program goes on when it can't print any more, and says so once."""

import subprocess
import sys

import pytest
from conftest import REPOSITORY

PROGRAM = """
import sys
from pathlib import Path
from rich.console import Console
from common.platform.program import as_program
with as_program("program"):
    for number in range(3):
        Console().print("line", number)
        print("and", number, flush=True)
    Path(sys.argv[1]).touch()
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("redirected", "status", "said"),
    [
        ("| head -n 1", 0, "program: prints no more: Broken pipe\n"),
        ("> /dev/full", 1, "program: prints no more: No space left on device\n"),
        ("<&- >&-", 0, ""),
        ("<&- >&- 2>&-", 0, ""),
        ("2> /dev/full", 0, ""),
    ],
)
def test_a_program_ends_as_usual_whatever_its_output_does(tmp_path, redirected, status, said, unbuffered):
    command = f'"$0" -c "$1" "$2" {redirected}; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable, PROGRAM, str(tmp_path / "done")],
        env={"PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": unbuffered, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (status, said) and (tmp_path / "done").exists()
