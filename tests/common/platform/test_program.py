"""Signals at moments when an exception would do harm, or would print more than one line."""

import signal
import sys

import pytest
from conftest import REPOSITORY, run

from common.platform.errors import describe_signal

# Python's class of this name imports modules written in C. Here the import takes a while; a signal arrives meanwhile.
EXTENSION = """
import os, signal, sys, time
from common.platform.program import as_program
class ExtensionFileLoader:
    def create_module(self):
        os.kill(os.getpid(), int(sys.argv[1]))
        time.sleep(0.01)
        print("whole")
with as_program("program"):
    ExtensionFileLoader().create_module()
    time.sleep(10)
    print("not reached")
"""

# torch.distributed is a Python module whose import calls compiled code.
REGISTERS = """
import os, sys, time
from common.platform.program import as_program
body = "import os, sys, time; os.kill(os.getpid(), int(sys.argv[1])); time.sleep(0.01); print('whole')"
with as_program("program"):
    exec(compile(body, "__init__.py", "exec"), {"__name__": "torch.distributed"})
    time.sleep(10)
    print("not reached")
"""

# Acts like compiled code that replaces Python's exceptions with its own errors, or drops them.
COMPILED = """
import os, signal, sys, time
from common.platform.program import as_program
with as_program("program"):
    try:
        os.kill(os.getpid(), int(sys.argv[1]))
        time.sleep(20)
    except BaseException:
        if sys.argv[2] == "replaced":
            raise RuntimeError("MISMATCH of exceptions")
    time.sleep(20)
    print("not reached")
"""

# A process that gets Ctrl-C's signal in the middle of its imports.
CHILD = """
import os, signal, time
os.kill(os.getpid(), signal.SIGINT)
from common.platform.program import as_program
with as_program("child"):
    time.sleep(10)
"""
PARENT = """
import subprocess, sys
from common.platform.program import as_program, ctrl_c_waits
with as_program("parent"):
    with ctrl_c_waits():
        child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
    print(child.wait())
"""


def python(code, *arguments, **expected):
    return run(sys.executable, "-c", code, *arguments, PYTHONPATH=str(REPOSITORY), **expected)


@pytest.mark.parametrize("code", [EXTENSION, REGISTERS], ids=["machine code", "torch.distributed"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_a_module_of_machine_code_is_there(number, code):
    done = python(code, int(number), expect=128 + number)
    said = "interrupted" if number == signal.SIGINT else f"ended by {describe_signal(number)}"
    assert (done.stdout, done.stderr) == ("whole\n", f"program: {said}\n")


@pytest.mark.quick("2-dropped")
@pytest.mark.parametrize("lost", ["replaced", "dropped"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_whose_exception_is_lost_ends_the_program_all_the_same(number, lost):
    done = python(COMPILED, int(number), lost, expect=128 + number)
    said = "interrupted" if number == signal.SIGINT else f"ended by {describe_signal(number)}"
    assert (done.stdout, done.stderr) == ("", f"program: {said}\n")


def test_ctrl_c_reaches_a_process_that_is_started_when_it_is_in_its_program():
    done = python(PARENT, CHILD)
    assert (done.stdout, done.stderr) == ("130\n", "child: interrupted\n")


def test_ctrl_c_during_imports_shows_nothing():
    code = "import os, signal, common.platform.quiet_start; os.kill(os.getpid(), signal.SIGINT)"
    done = python(code, expect=-signal.SIGINT)
    assert not done.stdout + done.stderr
