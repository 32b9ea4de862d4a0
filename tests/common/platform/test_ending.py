"""How programs end: with one line, and together with the process that started them."""

import os
import platform
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import psutil
import pytest
from conftest import REPOSITORY, gone, run, wait_for

from common.platform.ending import FIRST_SECONDS
from common.platform.errors import describe_signal

# A chain of `depth` + 1 processes: each starts the next one, prints its id, and waits.
CHAIN = """
import ctypes, os, subprocess, sys, time
from common.platform.ending import as_program
with as_program("program"):
    depth, code = int(sys.argv[1]), sys.argv[2]
    if depth:
        subprocess.Popen([sys.executable, "-c", code, str(depth - 1), code])
    print(os.getpid(), flush=True)
    if not depth:
        ctypes.PyDLL(None).sleep(600)  # keeps Python's lock, as c10d's FileStore does
    time.sleep(600)
"""
LAUNCHED = ("TORCHELASTIC_RUN_ID", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
FIRST, SECOND = (dict(zip(LAUNCHED, values, strict=True)) for values in ("10022", "11122"))


def python(code, *arguments, **expected):
    return run(sys.executable, "-c", code, *arguments, PYTHONPATH=str(REPOSITORY), **expected)


@pytest.fixture
def start():
    """Starts a program whose output begins with `lines` process ids; returns its process and these ids."""
    with ExitStack() as opened:

        def start(*command, lines=1, **environment):
            environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **environment}
            process = opened.enter_context(
                subprocess.Popen(list(map(str, command)), env=environment, stdout=subprocess.PIPE, text=True)
            )
            family = [int(process.stdout.readline()) for _ in range(lines)]
            opened.callback(lambda: [psutil.Process(pid).kill() for pid in family if psutil.pid_exists(pid)])
            return process, family

        yield start


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_all_end_with_the_first_one(start, number):
    process, family = start(sys.executable, "-c", CHAIN, 2, CHAIN, lines=3)
    process.send_signal(number)
    assert process.wait(20) == (-9 if number == signal.SIGKILL else 128 + number)
    wait_for(lambda: gone(family), 5)


def test_one_that_a_launcher_has_started_ends_with_the_launcher(start):
    launcher = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(600)"
    process, family = start(sys.executable, "-c", launcher, sys.executable, "-c", CHAIN, 0, CHAIN, **FIRST)
    process.kill()
    wait_for(lambda: gone(family), 5)


def test_without_the_process_that_has_started_it_a_program_does_not_begin():
    program = "from common.platform.ending import as_program\nwith as_program('p'): print('begun')"
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert python(program, STARTED_BY_PROCESS=f"{gone.pid}@{platform.node()}", expect=1).stdout == ""
    assert python(program, STARTED_BY_PROCESS=f"{gone.pid}@another-node").stdout == "begun\n"


def test_a_program_that_a_user_has_started_outlives_its_shell(start):
    """With nohup, for example."""
    shell, (pid,) = start("bash", "-c", '"$@" & wait', "bash", sys.executable, "-c", CHAIN, 0, CHAIN)
    shell.kill()
    time.sleep(1)
    assert not gone([pid])


def test_the_first_process_has_time_to_print_the_error_of_all():
    """torchrun ends the first process as soon as another one has ended."""
    program = "from common.platform.ending import *\nwith as_program('p'): raise UserError('of all')"
    start = time.monotonic()
    assert not python(program, expect=2, **SECOND).stderr and time.monotonic() - start > FIRST_SECONDS
    assert python(program, expect=2, **FIRST).stderr == "p: error: of all\n"


def test_ignored_signals_stay_ignored(start):
    process, _ = start("bash", "-c", 'trap "" HUP; exec "$@"', "bash", sys.executable, "-c", CHAIN, 0, CHAIN)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert process.poll() is None
    process.terminate()
    assert process.wait(20) == 128 + signal.SIGTERM


# Acts like compiled code that drops Python's exceptions.
SIGNALLED = """
import os, sys, time
from common.platform.ending import as_program
with as_program("program"):
    while True:
        try:
            os.kill(os.getpid(), int(sys.argv[1]))
            time.sleep(20)
        except BaseException as error:
            print(error)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_program_whatever_runs(number):
    done = python(SIGNALLED, int(number), expect=128 + number, timeout=30)
    said = "interrupted" if number == signal.SIGINT else f"ended by {describe_signal(number)}"
    assert (done.stdout, done.stderr) == ("", f"program: {said}\n")


# A process that gets Ctrl-C's signal in the middle of its imports.
CHILD = """
import os, signal, time
os.kill(os.getpid(), signal.SIGINT)
from common.platform.ending import as_program
with as_program("child"):
    time.sleep(10)
"""
PARENT = """
import subprocess, sys
from common.platform.ending import as_program, ctrl_c_waits
with as_program("parent"):
    with ctrl_c_waits():
        child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
    print(child.wait())
"""


def test_ctrl_c_reaches_a_process_that_is_started_when_it_is_in_its_program():
    done = python(PARENT, CHILD)
    assert (done.stdout, done.stderr) == ("130\n", "child: interrupted\n")


def test_a_program_whose_reader_has_ended_ends_quietly():
    program = "from common.platform.ending import *\nwith as_program('p'):\n    for n in range(10**5): print(n)"
    command = '"$0" -c "$1" | head -1; exit ${PIPESTATUS[0]}'
    done = run("bash", "-c", command, sys.executable, program, PYTHONPATH=str(REPOSITORY), expect=141)
    assert (done.stdout, done.stderr) == ("0\n", "")
