"""How programs end: with one line, and together with a launcher that started them, but not with a user's shell.

That all processes of a run end together is tested in tests/implementations/test_ends.py.
"""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from conftest import REPOSITORY, gone, run, wait_for

WAITS = """
import os, time
from common.platform.ending import as_program
with as_program("program"):
    print(os.getpid(), flush=True)
    time.sleep(600)
"""
# The variables of torchrun's first process of two.
FIRST = {"TORCHELASTIC_RUN_ID": "1", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}


@pytest.fixture
def started():
    """A function that runs WAITS as the child of a command, which it kills; returns the process of WAITS."""
    programs = []

    def start(*command, **environment):
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **environment}
        words = [*command, sys.executable, "-c", WAITS]
        with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as parent:
            programs.append(psutil.Process(int(parent.stdout.readline())))
            parent.kill()
        return programs[-1]

    yield start
    for program in programs:
        if not gone([program.pid]):
            program.kill()


def test_a_process_of_a_launcher_ends_with_the_launcher(started):
    launcher = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(600)"
    program = started(sys.executable, "-c", launcher, **FIRST)
    wait_for(lambda: gone([program.pid]), 5)


def test_ignored_signals_stay_ignored(started):
    """As with nohup. A program that a user has started outlives the shell, too."""
    program = started("bash", "-c", 'trap "" HUP; "$@" & wait', "bash")
    program.send_signal(signal.SIGHUP)
    time.sleep(1)
    assert not gone([program.pid])
    program.terminate()
    wait_for(lambda: gone([program.pid]), 5)


def test_a_program_whose_reader_has_ended_ends_quietly():
    program = "from common.platform.ending import *\nwith as_program('p'):\n    for n in range(10**5): print(n)"
    command = '"$0" -c "$1" | head -1; exit ${PIPESTATUS[0]}'
    done = run("bash", "-c", command, sys.executable, program, PYTHONPATH=str(REPOSITORY), expect=141)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_an_error_of_memory_is_one_line():
    program = "import numpy\nfrom common.platform.ending import *\nwith as_program('p'): numpy.zeros(2**50)"
    done = run(sys.executable, "-c", program, PYTHONPATH=str(REPOSITORY), expect=1)
    assert done.stderr.startswith("p: error: out of memory: Unable to allocate")
